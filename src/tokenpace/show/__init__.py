"""The only layer that draws. It reads Steps and stamped Steps, and nothing below it knows that it is there.

    plots         what all figures share: colours with a marker each, type that can be read, a figure that belongs to nobody else
    live          one picture, updated in place while something is measured; a sentence says the same in words
    roofline      unit 00: launch, bandwidth and compute, and products landing on them
    odometer      unit 00: a text, and what was read for it
    theft         units 00 and 01: a thief, and what becomes of a pass
    race, tally   unit 01: scoring against writing, and the count of each
    anatomy       unit 02: a pass taken apart
    distribution  unit 02: what a sampler does to the next token
    cache         unit 03: with and without a cache
    widths        unit 03: what a pass costs by how many tokens are in it
    power         unit 07: watts over time, and what a token of either kind takes
    price         unit 07: the same by how many texts share a pass
    ledgers       the last figure of every unit: the pace equation, with all decoders so far
    controls      buttons and sliders

Importing `tokenpace.show` imports none of them.
"""
