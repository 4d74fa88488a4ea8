"""The built-in chat template, for models that came without one because they were not trained to chat."""

from __future__ import annotations

PLAIN = "plain"
PLAIN_TEMPLATE = """\
{% for message in messages %}{{ message.role | capitalize }}: {{ message.content }}

{% endfor %}Assistant:"""
PLAIN_STOP = ("\nUser:",)  # what ends an answer, for such a model goes on with the other part
