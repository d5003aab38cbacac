"""The command line: python -m tokenpace generate | race | probe | bench | fetch | doctor | check | reset.

`--json` prints one JSON object on stdout and nothing else (`bench --json FILE` writes it, with all raw samples, to a file).
Exit status 0, or 2 with one line on stderr: what was wrong and what to do.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext, redirect_stderr
from dataclasses import asdict
from io import StringIO
from math import isfinite

from . import __version__


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise ValueError(f"{message} (see python -m {self.prog} --help)")


def parser() -> Parser:
    p = Parser(prog="tokenpace", description="Decode with a language model, and see what the time goes into.")
    p.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = p.add_subparsers(dest="command", required=True, metavar=" | ".join(COMMANDS), parser_class=Parser)
    for name, (function, about, options) in COMMANDS.items():
        command = commands.add_parser(name, help=about, description=about)
        command.set_defaults(function=function)
        for flags, how in options:
            command.add_argument(*flags, **how)
    return p


def option(*flags, **how):
    return flags, how


JSON = option("--json", action="store_true", help="one JSON object on stdout and nothing else")
SUITES = ("decode", "prefill", "verify", "batch", "context", "steps", "large", "shape", "load", "quality")
MODEL = option(
    "--model", default="smollm2-135m", help="a name of the registry, hf:OWNER/NAME, shape:NAME, a .gguf file or a folder (default %(default)s)"
)
WRITING = [
    MODEL,
    option("--prompt", required=True, help="the text to continue; - reads it from stdin"),
    option("--chat", action="store_true", help="the prompt is a message, to be put into the model's chat template"),
    option("--max-new-tokens", type=int, default=64, metavar="N", help="default %(default)s, at most what the context leaves"),
    option("--temperature", type=float, default=0.0, metavar="T", help="0 (default) is greedy"),
    option("--top-p", type=float, default=1.0, metavar="P", help="the likeliest tokens with this mass (1: all)"),
    option("--top-k", type=int, default=0, metavar="K", help="the K likeliest tokens (0: all)"),
    option("--min-p", type=float, default=0.0, metavar="P", help="no token under this share of the likeliest one"),
    option("--stop", action="append", default=[], metavar="TEXT", help="cut the text before this; may be given several times"),
    option("--seed", type=int, default=None, metavar="S", help="the same seed writes the same text (default: a new one)"),
    option("--device", default="auto", help="auto, cpu, cuda or mps"),
    option("--dtype", default="auto", help="float32, bfloat16, float16 or auto"),
    option("--quantize", metavar="HOW", help="int8, int4, or stored: a GGUF file's blocks as they are (default: weights of --dtype)"),
    option("--plain", action="store_true", help="PyTorch's own kernels, not the tiled ones"),
    JSON,
]


def loaded(a, name: str | None = None):
    from .load import fast, load

    lm = load(name or a.model, device=a.device, dtype=a.dtype, quantize=None if name else a.quantize)
    return lm if a.plain else fast(lm)


def settings(a, lm) -> tuple[str | list[int], dict]:
    from .decode import Sampler

    prompt = sys.stdin.read() if a.prompt == "-" else a.prompt
    if lm.tokenizer is None:
        if a.chat:
            raise ValueError("--chat needs a chat template, and this model has no vocabulary at all: leave it out, and give --prompt as token ids")
        try:
            prompt = [int(t) for t in prompt.replace(",", " ").split()]
        except ValueError:
            raise ValueError("this model has random weights and no vocabulary: give --prompt as token ids, such as '1 2 3'") from None
    elif a.chat:
        prompt = lm.tokenizer.chat([{"role": "user", "content": prompt}])
    sampler = Sampler(a.temperature, a.top_k, a.top_p, a.min_p)
    return prompt, dict(sampler=sampler, max_new_tokens=a.max_new_tokens, stop=tuple(a.stop), seed=a.seed)


def by_name(decoders: list[str]) -> list[str]:
    """Those of the decoders that take no more than a prompt; checked before any weight is read."""
    if "refine" in decoders:
        raise ValueError(
            "decoder 'refine' needs a model with a mask token, and its id: use it from Python, generate(lm, prompt, decoder='refine', mask=…)"
        )
    return decoders


def generate(a) -> dict:
    """Write, as it comes; then what it took, on stderr."""
    from .generate import prepare

    by_name([a.decoder])
    lm = loaded(a)
    prompt, how = settings(a, lm)
    drafter = loaded(a, a.drafter) if a.drafter not in (None, "ngram") else a.drafter
    session, stamped = prepare(lm, prompt, decoder=a.decoder, drafter=drafter, **how), []
    for s in session.timed():
        stamped.append(s)
        if not a.json:
            print(session.texts[0].release(), end="", flush=True)
    rest, out = session.texts[0].release(end=True), session.read(stamped)[0]
    if out.error:
        raise out.error
    if not a.json:
        print(rest if lm.tokenizer else " ".join(map(str, out.tokens)))
        kind = lm.card["quantize"] or lm.card["dtype"]
        pace = f", {1e3 * out.tpot:.1f} ms/token after the first" if isfinite(out.tpot) else ""
        print(
            f"[{len(out.tokens)} tokens in {out.passes} passes{pace}; {kind} on {lm.device}; ended by: {out.finish_reason}]",
            file=sys.stderr,
        )
    return {k: v for k, v in asdict(out).items() if k not in ("error", "logprobs")} | {"model": lm.card, "decoder": a.decoder}


def race(a) -> dict:
    """The same prompt through several decoders, one ledger row each."""
    from .race import SAME_TEXT
    from .race import race as run_race

    names = by_name(a.decoder or SAME_TEXT)
    lm = loaded(a)
    prompt, how = settings(a, lm)
    say = (lambda text: print(text, file=sys.stderr)) if not a.json else (lambda text: None)
    ledger = run_race(lm, prompt, names, say, drafter=loaded(a, a.drafter) if a.drafter else None, **how)
    if not a.json:
        print(ledger)
    return {"model": lm.card, "rows": [asdict(e) for e in ledger.entries]}


def probe(a) -> dict:
    from .measure.probe import checked
    from .measure.probe import probe as run_probe

    device = checked(a.budget, a.device)
    if not a.json:
        print(f"probing for up to {a.budget:g} s: reads, matrix products, launches …", file=sys.stderr)
    roof = run_probe(a.budget, device)
    if not a.json:
        print(roof)
    return roof.to_dict()


def bench(a) -> dict:
    from .bench import bench as run_bench
    from .bench import compare, read

    if a.suite == "compare":
        if len(a.files) != 2:
            raise ValueError("bench compare takes two files, the old one first: bench compare OLD.jsonl NEW.jsonl")
        print(said := compare(*map(read, a.files)))
        return {"compared": said}
    if a.files:
        raise ValueError(f"bench {a.suite} takes no files; did you mean --json {a.files[0]}?")
    return run_bench(a.suite, a.against, a.json)


def fetch(a) -> dict:
    from .weights.registry import fetch as run_fetch

    path = run_fetch(a.model)
    if not a.json:
        print(f"{a.model} is in the cache: {path}, {path.stat().st_size / 1e6:.0f} MB")
    return {"model": a.model, "path": str(path), "bytes": path.stat().st_size}


def doctor(a) -> dict:
    from .measure.doctor import doctor as examine

    findings = examine()
    if not a.json:
        print(*findings, sep="\n")
    return {"findings": [f._asdict() for f in findings]}


def check(a) -> dict:
    from .progress import progress

    found = progress(a.unit)
    if not a.json:
        print(found)
    return found.to_dict()


def reset(a) -> dict:
    from .progress import reset as run_reset

    forgotten = run_reset(a.exercise)
    if not a.json:
        print("\n".join(f"# {id}, as you wrote it\n{text}\n" for id, text in forgotten.items() if text), end="")
        print(f"forgotten: {', '.join(forgotten) or 'nothing, for nothing was kept'}")
    return {"forgotten": forgotten}


COMMANDS = {
    "generate": (
        generate,
        "Continue a prompt.",
        [
            *WRITING,
            option("--decoder", default="autoregressive", help="autoregressive, uncached or speculative (default %(default)s)"),
            option("--drafter", help="for --decoder speculative: ngram (default), or a model with the same vocabulary"),
        ],
    ),
    "race": (
        race,
        "The same prompt through several decoders, one ledger row each.",
        [
            *WRITING,
            option("--decoder", action="append", help="may be given several times (default: all)"),
            option("--drafter", help="a small model with the same vocabulary"),
        ],
    ),
    "probe": (
        probe,
        "This machine's three ceilings: launch, bandwidth, compute.",
        [
            option("--budget", type=float, default=10.0, metavar="SECONDS", help="default %(default)s"),
            option("--device", default="cpu", help="cpu (default), cuda or mps"),
            JSON,
        ],
    ),
    "bench": (
        bench,
        "Against peers, in one run; raw samples are kept.",
        [
            option(
                "suite",
                nargs="?",
                default="decode",
                help=f"one of {', '.join(SUITES)} (default decode); or compare",
            ),
            option("files", nargs="*", metavar="OLD NEW", help="of compare: what --json wrote in two runs"),
            option("--against", default="all", help="all (default: transformers and llama.cpp where they are installed), one of them, or none"),
            option("--json", metavar="FILE", help="write everything there, as JSON lines"),
        ],
    ),
    "fetch": (fetch, "Download a model of the registry into the cache folder.", [option("model", help="a name of the registry"), JSON]),
    "doctor": (doctor, "What this machine has, what it lacks, and what that costs.", [JSON]),
    "check": (check, "Which exercises are done.", [option("unit", nargs="?", default="", help="two digits (default: all)"), JSON]),
    "reset": (reset, "Forget what was done of an exercise; it is printed once more.", [option("exercise", help="as 02.1, or 02 for a unit's"), JSON]),
}


def main(argv: list[str] | None = None) -> int:
    try:
        a = parser().parse_args(argv)
        quiet = getattr(a, "json", False) is True
        with redirect_stderr(StringIO()) if quiet else nullcontext():  # whoever reads JSON is told of errors, not of progress
            found = a.function(a)
        if quiet:
            print(json.dumps(finite(found), default=str))
        return 0
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read our output has gone
        sys.stderr.close()
        return 0
    except RecursionError as error:  # a RuntimeError, but nobody's input
        return fault(error)
    except (ValueError, TypeError, OSError, MemoryError, RuntimeError, ArithmeticError, ImportError) as error:
        return complain(str(error) or type(error).__name__)
    except Exception as error:  # nobody foresaw it, but whoever is at the other end has no use for a traceback
        return fault(error)


def fault(error: Exception) -> int:
    return complain(f"{type(error).__name__}: {error} (this is a fault of tokenpace: please report it)")


def complain(text: str) -> int:
    print("tokenpace: " + " ".join(text.split()), file=sys.stderr)
    return 2


def finite(found):
    """JSON has no NaN and no infinity: null."""
    if isinstance(found, dict):
        return {k: finite(v) for k, v in found.items()}
    if isinstance(found, (list, tuple)):
        return [finite(v) for v in found]
    return None if isinstance(found, float) and not isfinite(found) else found


if __name__ == "__main__":
    sys.exit(main())
