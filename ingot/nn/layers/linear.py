"""Linear layers and the embedding table."""

from __future__ import annotations

from typing import Any

from ingot import functional
from ingot.dtypes import DType
from ingot.errors import ModuleError
from ingot.nn.module import Module
from ingot.nn.parameter import Parameter


def positive(layer: str, **sizes: int) -> None:
    """Refuse sizes that are no positive ints, all of them in one error."""
    wrong = [f"{name}={size!r}" for name, size in sizes.items() if type(size) is not int or size <= 0]
    if wrong:
        raise ModuleError(f"{layer}: {', '.join(wrong)} must be positive ints")


class Linear(Module):
    """y = x · weightᵀ + bias.

    Args:
        in_features, out_features: the last dimension of x and of y.
        bias: whether there is a bias [out_features].
        dtype: of weight and bias, and so of x; default float32.
        output_dtype: of y; default that of x. A wider one is rounded to only once, straight from the accumulator.

    Raises:
        ModuleError: sizes that are not positive.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        dtype: DType | str | None = None,
        *,
        output_dtype: DType | str | None = None,
    ) -> None:
        super().__init__()
        positive(type(self).__name__, in_features=in_features, out_features=out_features)
        self.in_features, self.out_features, self.output_dtype = in_features, out_features, output_dtype
        self.weight = Parameter(shape=(out_features, in_features), dtype=dtype)
        self.register_parameter("bias", Parameter(shape=(out_features,), dtype=dtype) if bias else None)

    def forward(self, x: Any) -> Any:
        """[…, in_features] → […, out_features]"""
        return functional.linear(x, self.weight, self.bias, output_dtype=self.output_dtype)


class ColumnLinear(Linear):
    """A Linear whose outputs are what several devices would share out; on one device, Linear."""


class RowLinear(Linear):
    """A Linear whose inputs are what several devices would share out; on one device, Linear."""


class LoRA(Module):
    """What a low-rank adapter adds to a linear layer: (alpha / rank) · x · lora_Aᵀ · lora_Bᵀ (Hu et al. 2021).

    Args:
        in_features, out_features: those of the layer beside it.
        rank: of the product of both weights.
        alpha: default rank, and so a factor of 1.
        dtype: of the weights, and so of x; default float32.

    Raises:
        ModuleError: sizes that are not positive.
    """

    def __init__(
        self, in_features: int, out_features: int, rank: int, alpha: float | None = None,
        dtype: DType | str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        positive("LoRA", in_features=in_features, out_features=out_features, rank=rank)
        self.scale = 1.0 if alpha is None else alpha / rank
        self.lora_A = Linear(in_features, rank, False, dtype)
        self.lora_B = Linear(rank, out_features, False, dtype)

    def forward(self, x: Any) -> Any:
        """[…, in_features] → […, out_features], to be added to the layer's own"""
        return functional.mul(self.lora_B(self.lora_A(x)), self.scale)


class Embedding(Module):
    """A table of vectors, looked up by id.

    Args:
        num_embeddings: rows. An id outside 0..num_embeddings-1 is an error at run time.
        embedding_dim: columns.
        dtype: of the table; default float32.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, dtype: DType | str | None = None) -> None:
        super().__init__()
        positive("Embedding", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.weight = Parameter(shape=(num_embeddings, embedding_dim), dtype=dtype)

    def forward(self, ids: Any) -> Any:
        """int ids [T] → [T, embedding_dim]"""
        return functional.embedding(ids, self.weight)


class PromptTuningEmbedding(Embedding):
    """A table of vectors, and tables of virtual tokens: ids from `vocab_size` on are rows of the latter.

    Args:
        vocab_size: the first id of a virtual token; default num_embeddings.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, vocab_size: int | None = None, dtype: DType | str | None = None
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, dtype)
        self.vocab_size = num_embeddings if vocab_size is None else vocab_size
        positive("PromptTuningEmbedding", vocab_size=self.vocab_size)

    def forward(self, ids: Any, prompt_table: Any, tasks: Any, task_vocab_size: Any) -> Any:  # type: ignore[override]
        """int ids […], rows of all tasks [tasks · task_vocab_size, dim], the task of each id […], [1] → […, dim]"""
        virtual = functional.ge(ids, self.vocab_size)
        usual = functional.embedding(functional.where(virtual, 0, ids), self.weight)
        first = functional.mul(functional.cast(tasks, ids.dtype), functional.cast(task_vocab_size, ids.dtype))
        row = functional.add(first, functional.sub(ids, self.vocab_size))
        prompts = functional.embedding(functional.where(virtual, row, 0), prompt_table)
        return functional.where(functional.unsqueeze(virtual, -1), prompts, usual)
