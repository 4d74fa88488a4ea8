"""Serving a language model over HTTP, as OpenAI's interface has it. Needs the extra `serve`."""
