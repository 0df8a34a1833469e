"""Models and networks for planners: random ones, and those of Flashpoint's tables."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from functools import partial

from brisk.partitions.cost import ColdStart, Pricing, Turns, mean_turns, turns_of
from brisk.partitions.network import HostNetwork, LinkedHost
from brisk.partitions.profile import ModelProfile, SegmentProfile

REQUESTS = (1, 2, 5, 20, 300)


def random_profile(source: random.Random, segments: int) -> ModelProfile:
    """Return segments of some 10 MB, some of which are far larger, that hand on some 0.8 MB."""
    return ModelProfile(
        tuple(
            SegmentProfile(
                weight_bytes=int(source.expovariate(1e-7)),
                run_s=source.uniform(0.0005, 0.02),
                live_bytes=int(source.expovariate(1 / 8e5)),
                load_s=source.uniform(0, 0.02),
            )
            for _ in range(segments)
        )
    )


def random_network(source: random.Random, hosts: int) -> HostNetwork:
    """Return unequal links, some hosts with a copy, a narrow or wide registry, up to two peers."""
    return HostNetwork(
        tuple(
            LinkedHost(source.choice([200, 500, 500, 1000]), source.random() < 0.1)
            for _ in range(hosts)
        ),
        source.choice([300, 1000, 2000, math.inf]),
        source.choice([(), (500.0,), (300.0, 700.0)]),
    )


def random_pricing(source: random.Random, most_segments: int, most_hosts: int) -> Pricing:
    profile = random_profile(source, source.randint(1, most_segments))
    network = random_network(source, source.randint(1, most_hosts))
    kinds = [ColdStart.FLOWS, ColdStart.FLOWS, ColdStart.FLOWS, ColdStart.EQUAL_SHARES]
    return Pricing(profile, network, source.choice(kinds))


def random_turns(source: random.Random) -> Turns:
    return partial(source.choice([turns_of, mean_turns]), source.choice(REQUESTS))


def unshared(hosts: int, link_mbit: float = 500) -> HostNetwork:
    """Return the paper's assumption: no source is a bottleneck, and hops cost their bytes
    alone."""
    return HostNetwork((LinkedHost(link_mbit),) * hosts, math.inf, hop_latency_s=0)


def without_answers(profile: ModelProfile) -> ModelProfile:
    """Return the paper's assumption: answers take no time to travel back."""
    *front, last = profile.segments
    return ModelProfile((*front, replace(last, live_bytes=0)))


T5_LAYERS, T5_START_S, T5_LAYER_START_S, T5_RUN_S = 55, 25.974, 0.589, 0.1405
T5_HOPS_SHARE = 0.4394
"""T5-3B's share of hops: section 4.1.3; its run from the ratios of sections 3.3.2 and 8.4.1."""


def t5() -> ModelProfile:
    """Return T5-3B as Fig. 4.5's text implies it.

    One layer starts in 589 ms, the others share the rest, all 54 hops together take 43.94 % of a
    run at 1,000 Mbit/s. Which layer is the long one, and that the others are alike, is made up;
    weights are in the seconds.
    """
    hop_bytes = int(T5_HOPS_SHARE * T5_RUN_S / (T5_LAYERS - 1) * 125e6)
    others_s = (T5_START_S - T5_LAYER_START_S) / (T5_LAYERS - 1)
    starts = [T5_LAYER_START_S, *[others_s] * (T5_LAYERS - 1)]
    layers = [SegmentProfile(0, T5_RUN_S / T5_LAYERS, hop_bytes, each) for each in starts]
    return without_answers(ModelProfile(tuple(layers)))


PAPER_MODELS = {
    "CodeBERT": (499, 12),
    "ALBERT-XXL": (890, 12),
    "BART-L": (1626, 24),
    "DialoGPT-L": (3135, 36),
    "GPT-2-XL": (6282, 48),
    "T5-3B": (11408, T5_LAYERS),
}
"""Table 3.1's sizes in MB, and layers: T5's from section 4.1.3, the others' as they are known."""


def paper_model(name: str, seed: int = 1) -> ModelProfile:
    """Return layers whose bytes and runs vary by a half.

    Starts and runs are T5's by size; outputs are alike, as transformers' are, of 1 MB: the paper
    gives no others.
    """
    megabytes, layers = PAPER_MODELS[name]
    source = random.Random(f"{name} {seed}")
    shares = [source.uniform(0.5, 1.5) for _ in range(layers)]
    scale = megabytes / 11408
    segments = [
        SegmentProfile(
            weight_bytes=int(megabytes * 1e6 * share / sum(shares)),
            run_s=T5_RUN_S * scale * source.uniform(0.5, 1.5) / layers,
            live_bytes=1_000_000,
            load_s=T5_START_S * scale * share / sum(shares),
        )
        for share in shares
    ]
    return without_answers(ModelProfile(tuple(segments)))
