"""Topology `single_gpu`: one collector, one learner, one device; batches are sampled where the ring lives."""

from __future__ import annotations

from offpolicy.data.sources import ReplaySource, SourceSpec
from offpolicy.ipc.child import ChildContext
from offpolicy.ipc.world import SoloWorld
from offpolicy.loop import Parts
from offpolicy.timing.device import DeviceFence

from . import wiring
from .learner import Session


def learner_main(context: ChildContext) -> None:
    """Entry point of the learner process."""
    session = Session(context)
    cfg = session.job.cfg
    spec = SourceSpec(
        layout=wiring.row_layout(session.job.spec),
        pace=wiring.make_pace(cfg, session.anchor),
        batch_size=cfg.algo.batch_size,
        normalize_obs=cfg.algo.normalize_obs,
        device=session.device,
    )
    source = ReplaySource(spec, session.ring, session.sampler, session.gate, session.learner.num_updates)
    source.fresh_from = session.fresh_from
    session.source = source
    session.run(
        Parts(
            source=source,
            learner=session.learner,
            fence=DeviceFence(session.device),
            publisher=session.publisher,
            evaluator=session.evaluator,
            checkpointer=session.checkpointer,
            reporter=session.reporter,
            world=SoloWorld(),
            stop=session.control,
            ledger=session.ledger,
        )
    )
