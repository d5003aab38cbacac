"""Unit 07, The price of an output token: what a token took, what a counter counted, what that costs, and what sharing a pass does to it."""

from itertools import pairwise

from tokenpace.exercises import exercise

# 07.1: seconds of a token ------------------------------------------------------------------------------------------

each = exercise(
    "07.1",
    "seconds_each",
    task="From a list of passes, compute the seconds of an input token and of an output token.",
    difficulty=2,
    minutes=7,
    hints=(
        "Make two heaps of passes, by their phase. Of each heap you need all seconds and all tokens; but they are not in the same column.",
        "Input: seconds of the prefill passes ÷ tokens they were *fed*. Output: seconds of the others ÷ tokens that they *kept*.",
    ),
    explanation="Input tokens are paid for by being fed, output tokens by being written. The prompt's pass writes one, too, but nobody waited for it "
    "longer than for the prompt: it comes with the input, and is counted on neither side. All seconds over all tokens is not the mean of the passes' "
    "own quotients, where passes have unlike numbers of tokens.",
)


@each.solution
def seconds_each(passes):
    """(input, output): seconds of an input token and of an output token. The token that a prompt's pass writes counts as neither.

    passes: a list of (phase, fed, kept, seconds). phase: "prefill" for the passes over prompts, another word for those that write.
    fed: tokens that went in, all texts together · kept: tokens that it wrote and that stayed; that can be fewer than were fed (unit 14)

    [("prefill", 4, 1, 0.2), ("decode", 1, 1, 0.5), ("decode", 1, 1, 0.7)] -> (0.05, 0.6)
    """
    given = [(fed, seconds) for phase, fed, kept, seconds in passes if phase == "prefill"]
    written = [(kept, seconds) for phase, fed, kept, seconds in passes if phase != "prefill"]
    return tuple(sum(s for _, s in heap) / sum(n for n, _ in heap) for heap in (given, written))


PASSES = {
    "one text": [("prefill", 50, 1, 0.1), *[("decode", 1, 1, 0.02)] * 9],
    "four texts, prompts in two passes": [("prefill", 512, 0, 0.5), ("prefill", 88, 4, 0.15), *[("decode", 4, 4, 0.03)] * 5],
    "guesses, of which not all are kept": [("prefill", 20, 1, 0.05), ("verify", 5, 3, 0.03), ("verify", 5, 1, 0.03), ("verify", 5, 5, 0.04)],
}
for what, run in PASSES.items():
    each.trial(what)(lambda seconds_each, run=run: tuple(seconds_each(list(run))))


def _heap(passes, prompts, column):
    heap = [one for one in passes if (one[0] == "prefill") == prompts]
    return sum(one[3] for one in heap) / sum(one[column] for one in heap)


@each.mistake("You divided the prefill's seconds by what it wrote. Its input are the tokens it was fed.")
def _(passes):
    return _heap(passes, True, 2), _heap(passes, False, 2)


@each.mistake("An output token is one that was kept. You divided by what was fed: where guesses are verified, more goes in than stays.")
def _(passes):
    return _heap(passes, True, 1), _heap(passes, False, 1)


@each.mistake("You divided by the number of passes. A pass has many tokens, of a long prompt or of several texts.")
def _(passes):
    count = lambda prompts: sum((one[0] == "prefill") == prompts for one in passes)
    return tuple(sum(one[3] for one in passes if (one[0] == "prefill") == prompts) / count(prompts) for prompts in (True, False))


@each.mistake("The token that the prompt's pass wrote is in your output tokens, though its seconds are not. It comes with the input.")
def _(passes):
    output = sum(one[3] for one in passes if one[0] != "prefill") / sum(one[2] for one in passes)
    return _heap(passes, True, 1), output


@each.mistake("All seconds are in your output tokens, the prompt's too. Those are paid for as input.")
def _(passes):
    output = sum(one[3] for one in passes) / sum(one[2] for one in passes if one[0] != "prefill")
    return _heap(passes, True, 1), output


@each.mistake("You took the mean of the passes' own quotients. Add all seconds and all tokens first: a pass with few tokens must not count as much.")
def _(passes):
    mean = lambda values: sum(values) / len(values)
    given = mean([seconds / fed for phase, fed, _, seconds in passes if phase == "prefill"])
    return given, mean([seconds / kept for phase, _, kept, seconds in passes if phase != "prefill"])


@each.mistake("Those are tokens per second. Wanted are seconds per token.")
def _(passes):
    return 1 / _heap(passes, True, 1), 1 / _heap(passes, False, 2)


@each.mistake("The other way round: the input token first, then the output token.")
def _(passes):
    return _heap(passes, False, 2), _heap(passes, True, 1)


# 07.2: joules from a counter that starts again ---------------------------------------------------------------------

counted = exercise(
    "07.2",
    "joules",
    task="Make joules of what a counter showed, all of them and those above idle.",
    difficulty=3,
    minutes=8,
    hints=(
        "Go from each reading to the next. If the next one is smaller, the counter has started again meanwhile: what had it left to go before that?",
        "`for a, b in pairwise(readings)` goes through the neighbours. Add up `b - a`, and `size` more wherever b < a. Divide by a million. Idle "
        "*power* takes `idle * seconds` joules.",
    ),
    needs="from itertools import pairwise",
    explanation="A counter of energy only ever goes up, until it is full and starts at 0 again; some are full within minutes. Looked at often "
    "enough, that can be undone: a smaller number means that one whole range has gone by. Watts are joules per second, so a machine that would have "
    "taken `idle` watts anyway took idle · seconds joules of them for nothing. Both numbers are wanted: whoever pays the bill pays all of it, and "
    "whoever asks what the work itself took subtracts.",
)


@counted.solution
def joules(readings, size, idle, seconds):
    """(all, above idle): the joules between the first reading and the last, and those of them above what an idle machine takes.

    readings: what the counter showed, in microjoules (a million of them are a joule), in order. It goes from 0 up to size - 1, then starts at 0
    again. It was looked at often enough: between two readings it started again once at most. It may do so several times in all.
    idle: watts that the machine takes when nothing runs · seconds: between the first reading and the last

    With size 10_000_000 the readings [4_000_000, 9_000_000, 2_000_000] are 5 + 3 joules. In 2 seconds at 3 watts idle: (8.0, 2.0).
    """
    total = 0
    for a, b in pairwise(readings):
        total += b - a + (size if b < a else 0)
    return total / 1e6, total / 1e6 - idle * seconds


COUNTED = {
    "a counter that goes up": ([1_500_000, 4_000_000, 9_500_000], 262_143_328_850, 1.5, 4.0),
    "one that starts again": ([9_000_000, 9_500_000, 1_000_000, 2_500_000], 10_000_000, 0.25, 6.0),
    "one that starts again three times": ([1_000_000, 8_000_000, 2_000_000, 1_000_000, 9_000_000, 500_000], 10_000_000, 2.0, 5.0),
    "a counter that nobody starts from 0": ([2_000_000, 7_000_000], 10_000_000, 1.0, 2.0),
}
for what, case in COUNTED.items():
    counted.trial(what)(lambda joules, case=case: joules(list(case[0]), *case[1:]))


def _all(readings, size):
    return sum(b - a + (size if b < a else 0) for a, b in pairwise(readings)) / 1e6


@counted.mistake(
    "Where the counter started again your energy falls. No machine gives energy back: a smaller reading means that a whole range went by."
)
def _(readings, size, idle, seconds):
    total = (readings[-1] - readings[0]) / 1e6
    return total, total - idle * seconds


@counted.mistake(
    "You looked at the first reading and the last. In between the counter may have started again several times: go from each to the next."
)
def _(readings, size, idle, seconds):
    total = (readings[-1] - readings[0]) / 1e6 + (size / 1e6 if readings[-1] < readings[0] else 0)
    return total, total - idle * seconds


@counted.mistake(
    "Where the counter started again you took the difference without its sign. What went by is what was left of the range, and the new reading."
)
def _(readings, size, idle, seconds):
    total = sum(abs(b - a) for a, b in pairwise(readings)) / 1e6
    return total, total - idle * seconds


@counted.mistake("Where the counter started again you counted from 0 only. What was left of its range before that went by, too.")
def _(readings, size, idle, seconds):
    total = sum(b - a if b >= a else b for a, b in pairwise(readings)) / 1e6
    return total, total - idle * seconds


@counted.mistake("You threw the steps away in which the counter started again. They can be mended: one whole range is missing in each.")
def _(readings, size, idle, seconds):
    total = sum(b - a for a, b in pairwise(readings) if b >= a) / 1e6
    return total, total - idle * seconds


@counted.mistake("Those are microjoules: a million of them are a joule.")
def _(readings, size, idle, seconds):
    total = 1e6 * _all(readings, size)
    return total, total - idle * seconds


@counted.mistake("`idle` is in watts, joules *per second*. Multiply it by the seconds before you subtract it from joules.")
def _(readings, size, idle, seconds):
    return _all(readings, size), _all(readings, size) - idle


@counted.mistake("You gave watts: the answer is wanted in joules, which are watts times seconds.")
def _(readings, size, idle, seconds):
    return _all(readings, size) / seconds, _all(readings, size) / seconds - idle


@counted.mistake("Your second number is the first one again: take from it what the idle machine would have taken.")
def _(readings, size, idle, seconds):
    return _all(readings, size), _all(readings, size)


@counted.mistake("You subtracted idle from both. The first number is all that was counted: that is what is on the bill.")
def _(readings, size, idle, seconds):
    own = _all(readings, size) - idle * seconds
    return own, own


# 07.3: money -------------------------------------------------------------------------------------------------------

money = exercise(
    "07.3",
    "price",
    task="Compute what so many seconds and joules cost.",
    difficulty=1,
    minutes=4,
    target="tokenpace.measure.price:price",
    hints=(
        "Two parts, added. How many hours are the seconds? How many joules has a kilowatt-hour, if a watt is a joule per second?",
        "An hour has 3600 seconds. A kilowatt-hour is 1000 joules a second for 3600 seconds.",
    ),
    explanation="Time first: a machine costs by the hour, whether it is bought or rented, and whatever it does in that hour. Energy comes on top, "
    "unless the rent has it in it already: then its price is 0 here. Which of the two weighs more hangs on your rates; try some.",
)


@money.solution
def price(seconds, joules, rate, kwh):
    """What so many seconds and joules cost, in the currency of the two rates.

    seconds: that the machine is taken for · rate: what an hour of it costs
    joules: that it takes meanwhile · kwh: what a kilowatt-hour costs. A kilowatt-hour is 1000 watts for an hour.

    price(3600, 7_200_000, 2.0, 0.25) is 2.5: an hour, and two kilowatt-hours.
    """
    return seconds / 3600 * rate + joules / 3.6e6 * kwh


for what, case in {
    "a minute at 200 watts": (60, 12_000, 3.0, 0.25),
    "a day at 50 watts": (86_400, 4_320_000, 0.1, 0.4),
    "rented, with the electricity in the rent": (1800, 540_000, 2.5, 0.0),
    "a machine that costs nothing but its electricity": (7200, 720_000, 0.0, 0.3),
}.items():
    money.trial(what)(lambda price, case=case: price(*case))


@money.mistake("`rate` is for an hour, which has 3600 seconds. You divided by 60: that is for a minute.")
def _(seconds, joules, rate, kwh):
    return seconds / 60 * rate + joules / 3.6e6 * kwh


@money.mistake("`rate` is for an hour, and you multiplied it by seconds as they are.")
def _(seconds, joules, rate, kwh):
    return seconds * rate + joules / 3.6e6 * kwh


@money.mistake("1000 joules are a kilojoule. A kilowatt-*hour* is 1000 joules in each second of an hour.")
def _(seconds, joules, rate, kwh):
    return seconds / 3600 * rate + joules / 1000 * kwh


@money.mistake("3600 joules are a watt-hour. A *kilo*watt-hour is a thousand of them.")
def _(seconds, joules, rate, kwh):
    return seconds / 3600 * rate + joules / 3600 * kwh


@money.mistake("`kwh` is for a kilowatt-hour, and you multiplied it by joules as they are.")
def _(seconds, joules, rate, kwh):
    return seconds / 3600 * rate + joules * kwh


@money.mistake("Joules are not power: they have the time in them already. You multiplied them by the hours once more.")
def _(seconds, joules, rate, kwh):
    return seconds / 3600 * (rate + joules / 3.6e6 * kwh)


@money.mistake("The energy is missing from your price.")
def _(seconds, joules, rate, kwh):
    return seconds / 3600 * rate


@money.mistake("The machine's time is missing from your price: it costs, whatever it takes from the socket.")
def _(seconds, joules, rate, kwh):
    return joules / 3.6e6 * kwh


# 07.4: the ratio ---------------------------------------------------------------------------------------------------

shared = exercise(
    "07.4",
    "times",
    task="Predict how many input tokens an output token is worth, if so many texts share a pass.",
    difficulty=4,
    minutes=10,
    hints=(
        "Three times are enough: reading the weights, reading the keys and values of one text, and multiplying for one token. Which of them is "
        "shared by the texts of a pass?",
        "A pass of writing reads weights + batch · kv bytes and multiplies batch · flop; it takes the longer of the two, and its seconds are shared "
        "by batch tokens. An input token takes flop ÷ the machine's FLOP/s.",
    ),
    explanation="The weights are read once for all texts of a pass, so each output token's share of them falls with the batch. Each text's keys and "
    "values are its own: nobody shares them, and that part stays, however many texts there are. In the end arithmetic is a floor, too: an output "
    "token is multiplied by the same weights as an input token, so the ratio never falls below 1.",
)


@shared.solution
def times(weights, kv, flop, bandwidth, flops, batch):
    """How many times as many seconds an output token takes as an input token, where nothing but reading and multiplying takes time.

    weights: bytes of the model · kv: bytes of the keys and values that one text has kept · flop: of one token in a pass, input or output
    bandwidth: bytes a second that memory gives · flops: FLOP a second that the machine multiplies · batch: texts that share each pass of writing

    A pass of writing makes one token for each text. It reads the weights once, and every text's keys and values; reading and multiplying go on
    at the same time, so it takes the longer of the two. The prompt is so long that an input token takes the time of its multiplying, and no more.

    times(weights=80, kv=10, flop=40, bandwidth=10, flops=20, batch=4): a pass reads for 12 seconds and multiplies for 8, so a token takes 3. An input
    token takes 2. That is 1.5.
    """
    reading, multiplying = (weights + batch * kv) / bandwidth, batch * flop / flops
    return max(reading, multiplying) / batch / (flop / flops)


for what, case in {
    "one text": (270e6, 3e6, 270e6, 40e9, 220e9, 1),
    "four texts": (270e6, 3e6, 270e6, 40e9, 220e9, 4),
    "so many that arithmetic decides": (270e6, 3e6, 270e6, 40e9, 220e9, 64),
    "two texts on a machine that multiplies slowly": (270e6, 3e6, 270e6, 40e9, 10e9, 2),
    "a large model, long texts, very many of them": (16e9, 1e9, 16e9, 3.35e12, 990e12, 256),
}.items():
    shared.trial(what)(lambda times, case=case: times(*case))


def _ratio(read, multiply, batch, given):
    return max(read, multiply) / batch / given


@shared.mistake("You shared the keys and values as well. Each text has its own: a pass reads `kv` once for every one of them.")
def _(weights, kv, flop, bandwidth, flops, batch):
    return _ratio((weights + kv) / bandwidth, batch * flop / flops, batch, flop / flops)


@shared.mistake("The weights are read once for the whole pass, not once for each text: that is what sharing means.")
def _(weights, kv, flop, bandwidth, flops, batch):
    return _ratio(batch * (weights + kv) / bandwidth, batch * flop / flops, batch, flop / flops)


@shared.mistake("You left the keys and values out. They are little for a short text, but they are what no batch makes cheaper.")
def _(weights, kv, flop, bandwidth, flops, batch):
    return _ratio(weights / bandwidth, batch * flop / flops, batch, flop / flops)


@shared.mistake("You multiplied for one token only. Each text of the pass has a token in it.")
def _(weights, kv, flop, bandwidth, flops, batch):
    return _ratio((weights + batch * kv) / bandwidth, flop / flops, batch, flop / flops)


@shared.mistake("You added reading and multiplying. They go on at the same time: the longer one decides.")
def _(weights, kv, flop, bandwidth, flops, batch):
    return ((weights + batch * kv) / bandwidth + batch * flop / flops) / batch / (flop / flops)


@shared.mistake("Multiplying is missing: with many texts a pass takes longer to multiply than to read.")
def _(weights, kv, flop, bandwidth, flops, batch):
    return (weights + batch * kv) / bandwidth / batch / (flop / flops)


@shared.mistake("That's a whole pass. It writes a token for each text: divide by the batch.")
def _(weights, kv, flop, bandwidth, flops, batch):
    return max((weights + batch * kv) / bandwidth, batch * flop / flops) / (flop / flops)


@shared.mistake("That's the seconds of an output token. How many input tokens is it worth?")
def _(weights, kv, flop, bandwidth, flops, batch):
    return max((weights + batch * kv) / bandwidth, batch * flop / flops) / batch


@shared.mistake("Upside down: output over input is wanted, and an output token is the dearer of the two.")
def _(weights, kv, flop, bandwidth, flops, batch):
    return batch * (flop / flops) / max((weights + batch * kv) / bandwidth, batch * flop / flops)


# 07.5: the wrong bill ----------------------------------------------------------------------------------------------

audit = exercise(
    "07.5",
    "wrong_bill",
    task="Of five bills one is wrong: find it.",
    difficulty=3,
    minutes=9,
    hints=(
        "For each bill: how many seconds was the machine taken? Input tokens that were in the cache take none, and a pass of writing makes a token "
        "for each text that shares it.",
        "`((given - cached) * fed + written / texts * passed) / 3600 * rate` is what a bill should ask for. Return the name of the one that doesn't.",
    ),
    explanation="A bill is seconds times rate. An input token that is still in the cache is not passed again (unit 11). An output token alone has a "
    "pass to itself; in company it has a share of one. So two customers with the same numbers of tokens may have taken the machine for quite "
    "different times, and a list with two prices is right for one mixture of both only.",
)


@audit.solution
def wrong_bill(bills, rate, fed, passed):
    """The name of the only bill that doesn't ask for the machine's seconds times its rate. The others are right to a hundredth.

    bills: a list of (name, given, cached, written, texts, asked), in the currency of `rate`
      given: input tokens, of which `cached` were still in the cache, so that they weren't passed again
      written: output tokens of all its texts · texts: how many of them shared each pass of writing; prompts share nothing
    rate: what an hour of the machine costs · fed: seconds for passing an input token · passed: seconds of a pass of writing, whoever shares it

    At 3.60 an hour, 0.001 s an input token and 0.01 s a pass of writing, ("A", 9000, 0, 1000, 1, 0.019) is right: 9 seconds and 10, for a
    thousandth each. ("B", 9000, 8000, 1000, 10, 0.019) is wrong: it should ask for 0.002.
    """
    for name, given, cached, written, texts, asked in bills:
        due = ((given - cached) * fed + written / texts * passed) / 3600 * rate
        if abs(asked / due - 1) > 0.01:
            return name


def _due(bill, rate, fed, passed):
    _, given, cached, written, texts, _ = bill
    return ((given - cached) * fed + written / texts * passed) / 3600 * rate


RATES = (3.6, 0.001, 0.01)
ASKED = {  # the last of each: what the wrong bill asks for, as a function of it, or None where it is right
    "a discount for company that nobody had": [
        ("A", 10_000, 0, 1_000, 1, None),
        ("B", 1_000, 0, 10_000, 1, None),
        ("C", 10_000, 0, 10_000, 10, None),
        ("D", 10_000, 0, 10_000, 1, 0.020),
        ("E", 10_000, 9_000, 1_000, 1, None),
    ],
    "a prompt that was in the cache": [
        ("A", 2_000, 0, 500, 1, None),
        ("B", 4_000, 3_500, 500, 1, 0.009),
        ("C", 2_000, 1_000, 500, 4, None),
        ("D", 100, 0, 5_000, 8, None),
        ("E", 50_000, 0, 10, 1, None),
    ],
    "five that shared all their passes": [
        ("A", 1_000, 0, 1_000, 1, None),
        ("B", 500, 0, 2_000, 1, None),
        ("C", 3_000, 0, 4_000, 5, 0.043),
        ("D", 9_000, 0, 100, 1, None),
        ("E", 2_000, 500, 300, 1, None),
    ],
    "prompts that shared nothing": [
        ("A", 800, 0, 200, 1, None),
        ("B", 1_500, 0, 300, 1, None),
        ("C", 8_000, 0, 800, 4, 0.004),
        ("D", 2_500, 0, 40, 1, None),
        ("E", 600, 0, 900, 1, None),
    ],
    "the last of five": [
        ("A", 7_000, 2_000, 3_000, 6, None),
        ("B", 100, 0, 100, 1, None),
        ("C", 400, 0, 6_000, 12, None),
        ("D", 5_000, 4_900, 50, 1, None),
        ("E", 1_000, 0, 1_000, 1, 0.002),
    ],
}
for what, rows in ASKED.items():
    bills = [(*row[:5], row[5] or _due(row, *RATES)) for row in rows]
    audit.trial(what)(lambda wrong_bill, bills=bills: wrong_bill(list(bills), *RATES))


def _first(bills, due):
    return next((bill[0] for bill in bills if abs(bill[5] / due(bill) - 1) > 0.01), None)


@audit.mistake("You charge what was still in the cache. It wasn't passed again, so it took no seconds.")
def _(bills, rate, fed, passed):
    return _first(bills, lambda b: _due((b[0], b[1], 0, *b[3:]), rate, fed, passed))


@audit.mistake("You give each output token a pass of its own. Where texts share a pass, it makes a token for every one of them.")
def _(bills, rate, fed, passed):
    return _first(bills, lambda b: _due((*b[:4], 1, b[5]), rate, fed, passed))


@audit.mistake("You shared the prompts as well. Each input token is passed for its own text: only passes of writing are shared.")
def _(bills, rate, fed, passed):
    return _first(bills, lambda b: _due((*b[:4], 1, b[5]), rate, fed, passed) / b[4])


@audit.mistake("No bill fits yours, so you return the first one. `rate` is for an hour, of 3600 seconds.")
def _(bills, rate, fed, passed):
    return _first(bills, lambda b: 3600 * _due(b, rate, fed, passed))


@audit.mistake("You picked the dearest. A large bill may be right: work out what each should ask for.")
def _(bills, rate, fed, passed):
    return max(bills, key=lambda b: b[5])[0]


@audit.mistake("You compared prices per token. A token's price is not one number: that is what this unit is about.")
def _(bills, rate, fed, passed):
    return max(bills, key=lambda b: b[5] / (b[1] + b[3]))[0]


@audit.mistake("You found it, but return the bill. Only its name is wanted.")
def _(bills, rate, fed, passed):
    return next(bill for bill in bills if abs(bill[5] / _due(bill, rate, fed, passed) - 1) > 0.01)


@audit.mistake("That's where it stands in the list. Its name is wanted.")
def _(bills, rate, fed, passed):
    return next(i for i, bill in enumerate(bills) if abs(bill[5] / _due(bill, rate, fed, passed) - 1) > 0.01)
