"""Where a text ends, and what of it may be shown. CASES C10, C11."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenpace.stop import Strings, Text, either, ends


def kept(*pairs):
    return tuple((p, t, True) for p, t in pairs)


def shown(pieces, strings, tail=""):
    """(the released pieces, whether a string was found) of a text that comes in `pieces`, until it ends."""
    rule, released = Strings(pieces.__getitem__, strings, lambda: tail), []
    for i in range(len(pieces)):
        stop = rule(i)
        released.append(rule.release())
        if stop:
            break
    return [*released, rule.release(end=True)], rule.found


def cut(text, strings):
    """The text before whichever stop string begins first among those that are complete first."""
    for n in range(len(text) + 1):
        found = [text[:n].find(s) for s in strings if s in text[:n]]
        if found:
            return text[: min(found)], True
    return text, False


# Strings


@pytest.mark.parametrize(
    "pieces",
    [["the br", "own f", "ox jumps"], ["the brown fox", " jumps"], [*"the brown fox jumps"], ["the brown", " ", "f", "ox", " jumps"]],
    ids=str,
)
def test_c10_a_stop_string_over_tokens(pieces):
    released, found = shown(pieces, ["own fox"])
    assert found and "".join(released) == "the br"


def test_c10_a_near_miss_is_released():
    released, found = shown(["the br", "own ", "fo", "!", "?"], ["own fox"])
    assert released == ["the br", "", "", "own fo!", "?", ""] and not found


def test_c10_the_start_of_a_string_is_held_back_and_given_at_the_end():
    released, found = shown(["the br", "own f"], ["own fox"])
    assert released == ["the br", "", "own f"] and not found


def test_what_the_detokeniser_still_holds_counts():
    assert shown(["own f"], ["own fox"], tail="ox!") == (["", ""], True)
    assert shown(["own f"], ["own fox"], tail="og") == (["", "own fog"], False)


def test_no_strings_hold_nothing_back():
    assert shown(["a", "b"], []) == (["a", "b", ""], False)


def test_after_the_end_nothing_is_heard():
    asked = []
    rule = Strings(lambda t: asked.append(t) or "stop", ["stop"])
    assert rule(1) and rule(2) and asked == [1] and rule.text == ""


@pytest.mark.parametrize("strings", [[""], ["a", ""]])
def test_an_empty_stop_string_is_refused(strings):
    with pytest.raises(ValueError, match="empty"):
        Strings(str, strings)


@given(pieces=st.lists(st.text("abc", max_size=4), max_size=10), strings=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_any_split_shows_the_cut_text(pieces, strings):
    """However the text falls into tokens: the pieces join to it, cut where a string was first complete, and nothing is ever taken back.

    A token that completes several strings at once is cut at the earliest.
    """
    released, found = shown(pieces, strings)
    whole, at = "".join(pieces), 0
    for piece in pieces:
        at += len(piece)
        starts = [whole[:at].find(s) for s in strings if s in whole[:at]]
        if starts:
            break
    assert found == bool(strings and starts if pieces else False)
    assert "".join(released) == (whole[: min(starts)] if found else whole)


@given(whole=st.text("abc", max_size=20), strings=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3))
def test_one_letter_at_a_time_is_exact(whole, strings):
    released, found = shown([*whole], strings)
    assert ("".join(released), found) == cut(whole, strings)


# Tokens


def test_c11_any_of_several_ends():
    rule = ends([2, 7])
    assert [rule(t) for t in (1, 2, 7, 3)] == [False, True, True, False]
    assert not ends([])(0)


def test_either_tells_every_rule_every_token():
    heard = []
    rule = either(ends([3]), lambda t: heard.append(t) or t == 5)
    assert [rule(t) for t in (1, 3, 5)] == [False, True, True] and heard == [1, 3, 5]


# Texts


def test_a_limit_cuts_inside_a_block():
    text = Text(limit=3)
    assert text.take(kept((10, 1), (11, 2))) == (kept((10, 1), (11, 2)), None)
    assert text.take(kept((12, 3), (13, 4), (14, 5))) == (kept((12, 3)), "length")


def test_a_stop_cuts_inside_a_block_and_the_token_itself_stays():
    text = Text(rule=ends([7]))
    assert text.take(kept((4, 1), (5, 7), (6, 7))) == (kept((4, 1), (5, 7)), "stop")


@pytest.mark.parametrize("limit, why", [(2, "stop"), (1, "length"), (3, "stop")])
def test_limit_and_stop_together(limit, why):
    """A stop at the very limit is a stop: the text is whole."""
    writes, how = Text(limit, ends([7])).take(kept((4, 1), (5, 7), (6, 8)))
    assert how == why and writes == kept((4, 1), (5, 7))[: min(limit, 2)]


def test_rejected_writes_are_no_text():
    text = Text(limit=2, rule=ends([7]))
    writes = ((3, 7, False), (3, 5, True))
    assert text.take(writes) == (writes, None)
    assert text.take(((4, 7, False), (4, 6, True))) == (((4, 7, False), (4, 6, True)), "length")


def test_out_of_order_writes_wait_for_what_is_before_them():
    heard = []
    text = Text(rule=lambda t: heard.append(t) or t == 9)
    assert text.take(kept((2, 9), (1, 5)), settled=0) == (kept((2, 9), (1, 5)), None) and heard == []
    assert text.take(kept((3, 8), (0, 4)), settled=4) == (kept((0, 4)), "stop") and heard == [4, 5, 9]


def test_what_was_written_behind_the_end_is_taken_back():
    """Places filled earlier, which now lie behind it, are written empty."""
    text = Text(rule=ends([9]))
    assert text.take(kept((3, 1), (2, 2)), settled=0)[1] is None
    writes, why = text.take(kept((0, 5), (1, 9)), settled=4)
    assert why == "stop" and writes[:2] == kept((0, 5), (1, 9)) and set(writes[2:]) == {(2, None, True), (3, None, True)}


def test_places_that_may_change_are_not_judged():
    """An open block from position 5 on: an end in it may still go away."""
    text = Text(limit=10, rule=ends([9]))
    assert text.take(kept((5, 9), (6, 1)), settled=5)[1] is None
    assert text.take(kept((5, 2), (7, 3)), settled=5)[1] is None
    assert text.take(kept((8, 4)), settled=9) == (kept((8, 4)), None)
    assert text.take(kept((9, 9)), settled=9)[1] is None
    assert text.take(kept((10, 1)), settled=None) == ((), "stop")


@given(
    n=st.integers(1, 12),
    limit=st.none() | st.integers(1, 12),
    stop=st.none() | st.integers(0, 11),
    sizes=st.lists(st.integers(1, 5), min_size=12, max_size=12),
)
def test_any_blocks_end_where_single_tokens_end(n, limit, stop, sizes):
    """Tokens 0, 1, 2, … in blocks of any size: the text ends at the limit or after the stop, whichever comes first, and not before."""
    text, got, at, why = Text(limit, None if stop is None else ends([stop])), [], 0, None
    for size in sizes:
        if at >= n or why:
            break
        writes, why = text.take(kept(*((100 + i, i) for i in range(at, min(at + size, n)))))
        got += [t for _, t, _ in writes]
        at += size
    last = min([n] + ([limit] if limit else []) + ([stop + 1] if stop is not None else []))
    assert got == [*range(last)]
    assert why == ("stop" if stop is not None and stop + 1 == last else "length" if limit == last else None)


def test_no_rule_and_no_limit_never_end():
    text = Text()
    assert all(text.take(kept((i, i)))[1] is None for i in range(100))
