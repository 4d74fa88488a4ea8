"""`build_network`: an engine of any Network, measured where that is asked for, and compared with float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.builder import adapter as lora_adapter
from ingot.builder import report as accuracy
from ingot.builder.algorithms import Tune
from ingot.builder.compile import Compiled, check_format, compile_network, engine_of, make_tensors
from ingot.builder.phases import Phases
from ingot.builder.plans import Calibrate
from ingot.builder.summary import host_share, summary
from ingot.builder.switches import Debug, switches
from ingot.engine.session import Engine
from ingot.frontends.lora.adapter import Adapter
from ingot.ir import Network
from ingot.ir.recipe import ScalesError
from ingot.ir.verify import verify
from ingot.ir.weight_format import AS_IS, WeightFormat, config_of
from ingot.passes.calibrated import Plan
from ingot.passes.kv_cache import stored_as
from ingot.words import KV_KEY, SAME

Array = np.ndarray[Any, Any]
Feeds = Callable[[Engine], Mapping[str, Array]]


def build_network(
    network: Network,
    weights: Mapping[str, Array],
    *,
    config: Mapping[str, Any] | None = None,
    kind: str = "network",
    files: Mapping[str, bytes] | None = None,
    report: bool | Mapping[str, Any] | Feeds = False,
    wide: Mapping[str, Array] | None = None,
    seed: int = 0,
    phases: Phases | None = None,
    debug: Debug | None = None,
    adapter: Adapter | None = None,
    format: WeightFormat = AS_IS,
    calibrate: Calibrate | None = None,
    kv: str = SAME,
    tune: Tune | None = None,
) -> Engine:
    """An engine of any Network.

    Args:
        weights: the value of every parameter by name, read when needed.
        config: free facts for the runtime, in JSON values.
        files: carried along byte for byte.
        report: as `build` takes it, or what gives the arrays once there is an engine.
        wide: the weights for the float32 reference of the report, when they have more bits than `weights`.
        adapter: merged into the weights by their recipes; the portable network stays that of the base.
        format: how weights are stored. The portable network has them as floats; the config and the recipes say it.
        calibrate: plans which layers compute in int8. The portable network stays that of floats; the config has the
            plan.
        kv: how caches are stored, in the portable network too.
        tune: measures what convolutions and products are fastest with, on the arrays of the calibration or the report.

    Raises NetworkError, RecipeError, KernelRefused; UserError when no weight can be stored in the format.
    """
    phases = phases or Phases(None)
    with phases.phase("lower"):
        if kv != SAME:
            network, config = stored_as(network, kv), {**(config or {}), KV_KEY: kv}
        verify(network)
        sources = weights if adapter is None else lora_adapter.WithAdapter(weights, adapter)
        made_of = network if adapter is None else lora_adapter.adapted(network, adapter)
        feeds = report if isinstance(report, Mapping) else None
        debugging = switches(debug or Debug(), network, sources, feeds, seed)
    found = None if calibrate is None else calibrate(made_of, sources, phases)
    plan = None if found is None else found.plan
    try:
        if found is not None and not debugging:
            compiled, tensors = found.compiled, found.tensors
        else:
            compiled, tensors = _compiled(made_of, sources, format, plan, debugging, phases)
    except ScalesError as e:  # rare: nobody knows without reading all weights, so they are made twice
        format = replace(format, wide=e.sources)
        compiled, tensors = _compiled(made_of, sources, format, plan, debugging, phases)
    config = {
        **(config or {}), **({} if format == AS_IS else config_of(format)), **({} if plan is None else plan.config),
        "report": report is not False,
    }  # fmt: skip
    config = config if adapter is None else lora_adapter.described(config, adapter)
    make = partial(engine_of, network, compiled, tensors, config, kind, files or {})
    engine, tuned, said = make(compiled.program), None, list[str]()
    if tune is not None:
        arrays = feeds if found is None else found.feeds
        engine, tuned, said = tune(engine, compiled.program, make, phases, arrays)
    if report is not False:
        with phases.phase("report") as done:
            feeds = report(engine) if callable(report) else feeds
            wide = wide or weights
            if adapter is not None:
                weights = lora_adapter.Merged(weights, adapter)
                wide = lora_adapter.Merged(wide, adapter, dtypes.float32)
            if calibrate is not None and found is not None:
                engine.report = accuracy.whole(
                    network, engine, calibrate.wide or accuracy.in_float32(network, wide), found.feeds
                )
            else:
                engine.report = accuracy.report(
                    network, engine, weights, wide, format, feeds=feeds, seed=seed, done=done
                )
    engine.summary = replace(summary(engine, network, compiled), tuned=tuned)
    if report is not False and engine.summary.host and not network.states:
        with phases.phase("host calls"):
            arrays = accuracy.seeded(network, seed) if feeds is None else feeds
            engine.summary = replace(engine.summary, host_share=host_share(engine, arrays))
    engine.seconds = phases.seconds
    engine.log = [*(str(event) for event in compiled.log), *said]
    return engine


def _compiled(
    network: Network, sources: Mapping[str, Array], format: WeightFormat, plan: Plan | None, switches: dict[str, Any],
    phases: Phases,
) -> tuple[Compiled, dict[str, Array]]:  # fmt: skip
    """A network's program, and the tensors that it reads. Raises ScalesError where `format` has float16 scales of
    weights that want float32."""
    with phases.phase("lower"):
        compiled = compile_network(network, weights=format, plan=plan, **switches)
        if format != AS_IS:
            check_format(format, compiled, network)
    with phases.phase("pack") as done:
        return compiled, make_tensors(compiled.stored, sources, done)
