"""Unit 00: the bytes of a pass, a read that is timed properly, the three ceilings, the ridge, and what a thief proves."""

from statistics import mean, median

from tokenpace.exercises import exercise

# 00.1: the bytes of a pass -----------------------------------------------------------------------------------------

size = exercise(
    "00.1",
    "gigabytes",
    task="Say how many GB of weights one pass reads.",
    difficulty=1,
    minutes=4,
    needs="",
    hints=(
        "How many bits is that in all? How many bits make a byte, and how many bytes a GB?",
        "It's one line: multiply the two numbers that you are given, then divide twice.",
    ),
    explanation="Every weight is read once, however many tokens the pass has. The division by 8 is an exact one, not `//`: "
    "formats that keep a weight in 4 or 4.5 bits pack several into the same bytes. "
    "1 GB is a billion bytes, as on the label of a memory module's speed; 2 to the power 30 bytes are a GiB, 7 % more.",
)


@size.solution
def gigabytes(weights, bits):
    """GB that a pass reads, if it reads every weight once: a number with a fraction.

    weights: how many there are. bits: of one weight, for example 16, or 4.5 on average.
    A byte has 8 bits, and 1 GB has 1,000,000,000 bytes.
    """
    return weights * bits / 8 / 1e9


@size.trial("a billion weights of 16 bits")
def _(gigabytes):
    return gigabytes(1_000_000_000, 16)


@size.trial("eight billion weights of 4.5 bits")
def _(gigabytes):
    return gigabytes(8_000_000_000, 4.5)


@size.trial("30 million weights of 12 bits")
def _(gigabytes):
    return gigabytes(30_000_000, 12)


@size.mistake("Those are gigabits. A byte has 8 bits.")
def _(weights, bits):
    return weights * bits / 1e9


@size.mistake("You divided by a power of two: those are GiB. A GB is a billion bytes.")
def _(weights, bits):
    return weights * bits / 8 / 2**30


@size.mistake("Those are MB. A GB has a thousand of them.")
def _(weights, bits):
    return weights * bits / 8 / 1e6


@size.mistake("`10e9` is ten billion. A GB is a billion bytes, `1e9`.")
def _(weights, bits):
    return weights * bits / 8 / 10e9


@size.mistake("Those are bytes. How many of them make a GB?")
def _(weights, bits):
    return weights * bits / 8


@size.mistake(
    "You rounded the bytes of one weight down (with `//`, or with int). Weights of a few bits are packed, so a weight may take half a byte."
)
def _(weights, bits):
    return weights * (bits // 8) / 1e9


@size.mistake("Multiplied by 8 where it has to be divided: a byte is more than a bit, so there are fewer of them.")
def _(weights, bits):
    return weights * bits * 8 / 1e9


# 00.2: a read, timed properly --------------------------------------------------------------------------------------

probe = exercise(
    "00.2",
    "bandwidth",
    task="Find out how many GB a second a machine reads from its memory, by timing reads.",
    difficulty=2,
    minutes=10,
    needs="from statistics import median",
    hints=(
        "Three decisions: how large a buffer no cache could hold; what to do about the first read; and which of several times to believe.",
        "Read once without a clock. Then collect seven times in a list: `start = now()`, `read(size)`, `now() - start`. "
        "Divide the size by the median of the list, and make GB of it.",
    ),
    explanation="A buffer of a few times the cache has to come from memory, for what is read first is thrown out before it is wanted again. "
    "The first read finds nothing in place: the system is still handing out the pages. "
    "Of the rest, another program makes some longer, and a clock that is set meanwhile can make one impossibly short. "
    "So neither the mean nor the best of them is to be trusted; the median is, as long as fewer than half are disturbed.",
)


@probe.solution
def bandwidth(read, now, cache):
    """GB a second that this machine reads from memory, a number.

    read(size): read a buffer of `size` bytes (a whole number) once; returns when that is done.
    now(): the clock, in seconds.
    cache: bytes of the machine's last-level cache. What fits into it, even in part, comes from there and not from memory:
    take a buffer of four times as much or more.

    The first read of a buffer is slow, don't count it. Time seven more, one by one: now and then another program takes its turn,
    and once the clock itself is set. 1 GB is 1,000,000,000 bytes.
    """
    size, seconds = 8 * cache, []
    read(size)
    for _ in range(7):
        start = now()
        read(size)
        seconds.append(now() - start)
    return size / median(seconds) / 1e9


class Machine:
    """Its clock moves only when it reads. The first read fetches its pages, others are disturbed, and once the clock is set back."""

    def __init__(self, memory, inside, cache):
        self.memory, self.inside, self.cache, self.seconds, self.sizes = memory, inside, cache, 0.0, []

    def read(self, size):
        cached = min(max((4 * self.cache - size) / (3 * self.cache), 0), 1)  # share of the buffer that is found in the cache
        took, number = size * (cached / self.inside + (1 - cached) / self.memory), len(self.sizes)
        if number == 0:
            took *= 12
        elif number in (1, 5):
            took *= 3
        elif number == 4:
            took /= 4
        self.seconds += took
        self.sizes.append(size)

    def now(self):
        return self.seconds


def probed(bandwidth, machine):
    rate = bandwidth(machine.read, machine.now, machine.cache)
    large = "four times the cache or more" if min(machine.sizes, default=0) >= 4 * machine.cache else "less than four times the cache"
    return {"the smallest buffer that you read": large if machine.sizes else "none: nothing was read", "GB/s": rate}


@probe.trial("a laptop with 40 GB/s and a cache of 32 MB")
def _(bandwidth):
    return probed(bandwidth, Machine(40e9, 160e9, 32_000_000))


@probe.trial("a small machine with 3 GB/s and a cache of 512 kB")
def _(bandwidth):
    return probed(bandwidth, Machine(3e9, 9e9, 512_000))


def _times(read, now, size, reads):
    seconds = []
    for _ in range(reads):
        start = now()
        read(size)
        seconds.append(now() - start)
    return seconds


@probe.mistake("You timed a single read, and it was the first: nothing was in place yet. Read once before you start the clock, then time several.")
def _(read, now, cache):
    return 8 * cache / _times(read, now, 8 * cache, 1)[0] / 1e9


@probe.mistake("You timed a single read, and another program took its turn just then. Time several, and take the one in the middle.")
def _(read, now, cache):
    return 8 * cache / _times(read, now, 8 * cache, 2)[1] / 1e9


@probe.mistake("You took the mean of the times (or timed all reads in one go): a single disturbed read lengthens it. Take the one in the middle.")
def _(read, now, cache):
    return 8 * cache / mean(_times(read, now, 8 * cache, 8)[1:]) / 1e9


@probe.mistake("You took the mean, and the first read is in it, the slowest of all.")
def _(read, now, cache):
    return 8 * cache / mean(_times(read, now, 8 * cache, 7)) / 1e9


@probe.mistake("You timed eight reads in one go, or took their mean. The first is in it, and it is the slowest. Time the seven after it, one by one.")
def _(read, now, cache):
    return 8 * cache / mean(_times(read, now, 8 * cache, 8)) / 1e9


@probe.mistake("You divided the bytes of the cache by the time of a read. What was read is the buffer, and that is larger.")
def _(read, now, cache):
    return cache / median(_times(read, now, 4 * cache, 8)[1:]) / 1e9


@probe.mistake("You took the mean of the speeds: the one read during which the clock was set lifts it. Take the speed in the middle.")
def _(read, now, cache):
    return mean(8 * cache / seconds for seconds in _times(read, now, 8 * cache, 8)[1:]) / 1e9


@probe.mistake("You took the fastest read. It was too fast to be true: the clock was set while it ran. Take the one in the middle.")
def _(read, now, cache):
    return 8 * cache / min(_times(read, now, 8 * cache, 8)[1:]) / 1e9


@probe.mistake("Your buffer fits the cache, so it is the cache's speed that you found. Memory is read by a buffer several times as large.")
def _(read, now, cache):
    return cache / median(_times(read, now, cache, 8)[1:]) / 1e9


@probe.mistake("You divided by a power of two: those are GiB a second. A GB is a billion bytes.")
def _(read, now, cache):
    return 8 * cache / median(_times(read, now, 8 * cache, 8)[1:]) / 2**30


@probe.mistake("Those are bytes a second. How many bytes make a GB?")
def _(read, now, cache):
    return 8 * cache / median(_times(read, now, 8 * cache, 8)[1:])


@probe.mistake("Upside down: that's how many seconds a GB takes.")
def _(read, now, cache):
    return 1e9 * median(_times(read, now, 8 * cache, 8)[1:]) / (8 * cache)


# 00.3: the three ceilings ------------------------------------------------------------------------------------------

ceilings = exercise(
    "00.3",
    "least_seconds",
    task="Compute how long a pass takes at least, from the three ceilings of a machine.",
    difficulty=2,
    minutes=7,
    needs="",
    hints=(
        "Three numbers of seconds: for reading all weights once, for multiplying and adding each of them for every token, and for launching the "
        "operations.",
        "Units tell you what to divide: bytes ÷ (bytes per second), FLOP ÷ (FLOP per second). The three happen at the same time at best, so which of "
        "them has to be waited for?",
    ),
    explanation="A multiplication and an addition per weight and token are two FLOP. The weights are read once, whatever the number of tokens: "
    "this is why tokens that share a pass are cheap. While one thing is read, another can be multiplied, so the least is the largest of "
    "the three and not their sum. A real pass takes longer, because nothing overlaps perfectly.",
)


@ceilings.solution
def least_seconds(weights, bits, tokens, operations, roof):
    """Seconds that a pass takes at least.

    It reads `weights` weights of `bits` bits each, once, whatever the number of tokens; it multiplies and adds each weight once for every one of
    its `tokens` tokens, which is two FLOP; and it launches `operations` operations. At best all three go on at the same time.

    roof: a dict of what the machine can do: roof["bandwidth"] in bytes per second, roof["flops"] in FLOP per second, roof["launch"] in seconds
    per operation.

    least_seconds(10, 8, 3, 2, {"bandwidth": 5, "flops": 20, "launch": 0.5}) is 3.0: reading takes 2 seconds, multiplying 3, launching 1.
    """
    reading = weights * bits / 8 / roof["bandwidth"]
    multiplying = 2 * weights * tokens / roof["flops"]
    launching = operations * roof["launch"]
    return max(reading, multiplying, launching)


LAPTOP = {"bandwidth": 40e9, "flops": 300e9, "launch": 5e-6}


def _parts(weights, bits, tokens, operations, roof):
    return weights * bits / 8 / roof["bandwidth"], 2 * weights * tokens / roof["flops"], operations * roof["launch"]


@ceilings.trial("a model of 100 million weights of 16 bits, one token, on a laptop")
def _(least_seconds):
    return least_seconds(100_000_000, 16, 1, 200, dict(LAPTOP))


@ceilings.trial("the same with 5 tokens in the pass")
def _(least_seconds):
    return least_seconds(100_000_000, 16, 5, 200, dict(LAPTOP))


@ceilings.trial("the same with 64 tokens in the pass")
def _(least_seconds):
    return least_seconds(100_000_000, 16, 64, 200, dict(LAPTOP))


@ceilings.trial("a tiny model of 1,000 weights and 40 operations")
def _(least_seconds):
    return least_seconds(1_000, 32, 2, 40, dict(LAPTOP))


@ceilings.mistake("You added the three up. At best they go on at the same time: then the longest is what has to be waited for.")
def _(*pass_):
    return sum(_parts(*pass_))


@ceilings.mistake("You took the shortest of the three. The pass is over when the longest is.")
def _(*pass_):
    return min(_parts(*pass_))


@ceilings.mistake("Launching is missing: a tiny model has next to nothing to read, but its operations must be started all the same.")
def _(*pass_):
    return max(_parts(*pass_)[:2])


@ceilings.mistake("You counted one FLOP for each weight and token. A multiplication and an addition are two.")
def _(weights, bits, tokens, operations, roof):
    reading, multiplying, launching = _parts(weights, bits, tokens, operations, roof)
    return max(reading, multiplying / 2, launching)


@ceilings.mistake("You read the weights once for every token. A pass reads them once, and uses each for all of its tokens.")
def _(weights, bits, tokens, operations, roof):
    reading, multiplying, launching = _parts(weights, bits, tokens, operations, roof)
    return max(tokens * reading, multiplying, launching)


@ceilings.mistake("You multiplied for one token only. Each weight is multiplied and added for every token of the pass.")
def _(weights, bits, tokens, operations, roof):
    return max(_parts(weights, bits, 1, operations, roof))


@ceilings.mistake("You took bits for bytes: the bandwidth is given in bytes per second.")
def _(weights, bits, tokens, operations, roof):
    return max(_parts(weights, 8 * bits, tokens, operations, roof))


@ceilings.mistake("You counted a single launch. Every operation has to be launched.")
def _(weights, bits, tokens, operations, roof):
    return max(_parts(weights, bits, tokens, 1, roof))


# 00.4: the ridge ---------------------------------------------------------------------------------------------------

ridge = exercise(
    "00.4",
    "tokens_at_ridge",
    task="Say how many tokens must share a pass before arithmetic takes as long as reading.",
    difficulty=3,
    minutes=7,
    needs="",
    hints=(
        "Take one weight alone. How many seconds does it take to read it, and how many to multiply and add it for n tokens? Set the two equal.",
        "bits / 8 / bandwidth = 2 n / flops. Solve for n.",
    ),
    explanation="How many weights there are cancels: both sides have each of them once. What is left is the ridge of the machine, FLOP/s ÷ bytes/s, "
    "times the bytes of a weight, divided by the two FLOP that each token makes of it. With 16 bits the number of tokens is the ridge itself. "
    "Fewer bits move it to the left: a pass then reads less, so that arithmetic catches up with fewer tokens.",
)


@ridge.solution
def tokens_at_ridge(bits, bandwidth, flops):
    """How many tokens a pass must have for its arithmetic to take exactly as long as its reading. It needn't be a whole number.

    bits: of one weight. Every weight is read once a pass, and multiplied and added (two FLOP) once for every token.
    bandwidth: bytes per second. flops: FLOP per second. Launching is left out.

    tokens_at_ridge(8, 10, 400) is 20.0: a weight is read in 0.1 seconds, in which this machine does 40 FLOP.
    """
    return bits / 8 * flops / (2 * bandwidth)


@ridge.trial("16 bits, 40 GB/s, 300 GFLOP/s")
def _(tokens_at_ridge):
    return tokens_at_ridge(16, 40e9, 300e9)


@ridge.trial("4.5 bits, 100 GB/s, 1,200 GFLOP/s")
def _(tokens_at_ridge):
    return tokens_at_ridge(4.5, 100e9, 1200e9)


@ridge.trial("32 bits, 3,000 GB/s, 60,000 GFLOP/s")
def _(tokens_at_ridge):
    return tokens_at_ridge(32, 3e12, 60e12)


@ridge.mistake("Upside down: the more a machine multiplies a second, the more tokens it takes to keep it busy.")
def _(bits, bandwidth, flops):
    return 2 * bandwidth / (bits / 8 * flops)


@ridge.mistake("That's the machine's ridge, in FLOP per byte. How many bytes has a weight, and how many FLOP does a token make of it?")
def _(bits, bandwidth, flops):
    return flops / bandwidth


@ridge.mistake("The bytes of a weight are missing: a weight of more bits takes longer to read.")
def _(bits, bandwidth, flops):
    return flops / (2 * bandwidth)


@ridge.mistake("A token makes two FLOP of a weight, a multiplication and an addition. You counted one.")
def _(bits, bandwidth, flops):
    return bits / 8 * flops / bandwidth


@ridge.mistake("You took bits for bytes: the bandwidth is given in bytes per second.")
def _(bits, bandwidth, flops):
    return bits * flops / (2 * bandwidth)


@ridge.mistake(
    "The bytes of a weight are on the wrong side: a weight of more bits takes longer to read, so it can be multiplied for more tokens meanwhile."
)
def _(bits, bandwidth, flops):
    return flops / (bits / 8) / (2 * bandwidth)


# 00.5: what a thief proves -----------------------------------------------------------------------------------------

proof = exercise(
    "00.5",
    "bound",
    task="Say what may be concluded from two thieves: is the pass bound by bandwidth, or can't it be told?",
    difficulty=3,
    minutes=8,
    target="tokenpace.measure.intervention:bound",
    needs="",
    hints=(
        "First ask whether the experiment worked at all. It failed if nothing was stolen, and if the control shows an effect of its own.",
        'Two `if` that return "inconclusive". Then `share = memory / roof` decides between the other three.',
    ),
    explanation="A slower pass alone proves nothing: anything that runs beside it may slow it. What counts is how much of the roof's slowdown "
    "it took over, so a thief that hardly slowed reading has asked no question. The thief that only takes a core is the control: "
    "if it slows the pass too, the pass missed the core, and who knows what it missed of the bandwidth.",
)


@proof.solution
def bound(roof, memory, compute):
    """What two thieves tell of a pass. All three are slowdowns, as fractions: 0.5 means "took half as long again".

    roof: of reading memory, by the thief that takes bandwidth
    memory: of the pass, by the same thief
    compute: of the pass, by the thief that takes only a core

    Return one of these four:
    "inconclusive": reading slowed by less than 0.15, or the pass's `compute` is a tenth of `roof` or more
    "bound by bandwidth": the pass took over 0.8 of the roof's slowdown, or more
    "not bound by bandwidth": it took over half of it, or less
    "partly bound by bandwidth": something in between
    """
    if roof < 0.15 or compute >= 0.1 * roof:
        return "inconclusive"
    share = memory / roof
    if share >= 0.8:
        return "bound by bandwidth"
    return "not bound by bandwidth" if share <= 0.5 else "partly bound by bandwidth"


TRIALS = {
    "three clear cases": [(0.9, 0.85, 0.01), (0.9, 0.2, 0.01), (0.9, 0.6, -0.02)],
    "a weaker thief": [(0.3, 0.28, 0.01), (0.3, 0.1, 0.02), (0.3, 0.2, 0.0)],
    "a thief that stole next to nothing": [(0.08, 0.08, 0.0), (0.02, 0.3, 0.0), (0.0, 0.0, 0.0), (-0.05, 0.01, 0.0)],
    "a pass that misses its core": [(0.9, 0.85, 0.4), (0.3, 0.28, 0.05), (0.9, 0.1, 0.2)],
    "a pass that lost more, and a strong thief": [(0.3, 0.7, 0.0), (4.0, 3.6, 0.15), (4.0, 1.0, 0.0)],
}
for what, cases in TRIALS.items():
    proof.trial(what)(lambda bound, cases=cases: [bound(*case) for case in cases])


def _said(share):
    return "bound by bandwidth" if share >= 0.8 else "not bound by bandwidth" if share <= 0.5 else "partly bound by bandwidth"


@proof.mistake("You leave out the control. If the thief that takes only a core slows the pass as well, it may be the core that the pass missed.")
def _(roof, memory, compute):
    return "inconclusive" if roof < 0.15 else _said(memory / roof)


@proof.mistake("You don't ask whether anything was stolen. A thief that hardly slows reading proves nothing either way.")
def _(roof, memory, compute):
    return "inconclusive" if compute >= 0.1 * roof else _said(memory / roof)


@proof.mistake("Any slowdown counts for you. What matters is how much of the roof's own slowdown the pass took over.")
def _(roof, memory, compute):
    if roof < 0.15 or compute >= 0.1 * roof:
        return "inconclusive"
    return "bound by bandwidth" if memory > 0 else "not bound by bandwidth"


@proof.mistake("You compare the pass's slowdown itself with 0.8 and 0.5. Divide it by the roof's first: a weak thief slows everything less.")
def _(roof, memory, compute):
    return "inconclusive" if roof < 0.15 or compute >= 0.1 * roof else _said(memory)


@proof.mistake("You hold the control to 0.1 as it stands. It is to be less than a tenth *of the roof's slowdown*.")
def _(roof, memory, compute):
    return "inconclusive" if roof < 0.15 or compute >= 0.1 else _said(memory / roof)


@proof.mistake(
    "You subtract what the control lost. That mends nothing: if the pass misses its core, the experiment failed, and the answer is inconclusive."
)
def _(roof, memory, compute):
    return "inconclusive" if roof < 0.15 else _said((memory - compute) / roof)


@proof.mistake("Your division is upside down: the share is the pass's slowdown divided by the roof's.")
def _(roof, memory, compute):
    return "inconclusive" if roof < 0.15 or compute >= 0.1 * roof else _said(roof / memory)
