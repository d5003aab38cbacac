"""Files become tensors, a config and a tokenizer; read source → gguf → hfconfig → checkpoint → tokenizer → vocabulary → registry.

| file | one idea |
|---|---|
| `source` | many small tensors under foreign names become few large ones under ours, or one error lists everything that does not fit |
| `gguf` | a llama.cpp file: one header, quantised blocks |
| `checkpoint` | a Hugging Face folder: config.json, *.safetensors, tokenizer.json |
| `hfconfig` | config.json read strictly: what would change the arithmetic is refused by name |
| `tokenizer` | text ↔ ids, chat templates, and text that streams |
| `vocabulary` | where a tokenizer comes from, and the ways to cut text before merging |
| `registry` | models by name, fetched once and checked |
"""
