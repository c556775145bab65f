"""`offpolicy export RUN --onnx policy.onnx [--torch policy.pt2]`: a saved policy as files that need no `offpolicy`."""

from __future__ import annotations

import argparse
from pathlib import Path

from offpolicy.commands.options import add_policy_options, add_run
from offpolicy.commands.trust import check_trust


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run and the files."""
    add_run(parser)
    parser.add_argument("--onnx", type=Path, help="file to write, .onnx; needs offpolicy[export]")
    parser.add_argument("--torch", type=Path, help="file to write, .pt2, a program of torch.export")
    add_policy_options(parser, has_device=False)  # what is written depends on no device


def run(arguments: argparse.Namespace) -> int:
    """Exports the policy."""
    check_trust(arguments.run, is_trusted=arguments.trust)
    from offpolicy.commands.policy_files import export  # these import torch
    from offpolicy.commands.saved_run import PolicyChoice

    files = {"--onnx": arguments.onnx, "--torch": arguments.torch}
    return export(arguments.run, PolicyChoice.of(arguments), {option: file for option, file in files.items() if file})
