"""The only layer that draws. It reads Steps and stamped Steps, and nothing below it knows that it is there.

    plots         what all figures share: colours with a marker each, type that can be read, a figure that belongs to nobody else
    live          one picture, updated in place while something is measured; a sentence says the same in words
    roofline      unit 00: launch, bandwidth and compute, and products landing on them
    race          unit 01: scoring against writing
    distribution  unit 02: what a sampler does to the next token; a pass taken apart
    cache         unit 03: with and without a cache
    ledgers       the last figure of every unit: the pace equation, with all decoders so far
    controls      a button

Importing `tokenpace.show` imports none of them.
"""
