"""Errors at the command line: every expected one is a line on stderr and exit code 1, never a traceback.

Exit codes: 0 done, 1 an error of ours, 2 wrong usage, 130 Ctrl-C. With `--json` an error is one object on stdout:

    {"error": {"kind": "Unavailable", "message": "…", "hint": "…", "runbook": "docs/runbooks/Unavailable.md"}}

Wrong usage is of kind `Usage`. An error that nobody expected is a bug and keeps its traceback.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from infra.errors import InfraError
from ops.runbooks import page_of
from statestore.errors import InvalidInput, RollforwardError

_WRONG_USAGE = 2


class Guarded(TyperGroup):
    """The root command: turns errors into messages, for all commands below it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take in the words. A command says itself whether it answers in JSON, unless its own words cannot be parsed."""
        ctx.ensure_object(dict)["json"] = "--json" in args
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command. Raises `typer.Exit` for an expected error."""
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, typer.Abort) as error:
            if isinstance(error, typer.Abort) and not isinstance(error.__context__, KeyboardInterrupt):
                # Somebody was asked and said no.
                raise
            print("interrupted", file=sys.stderr)
            raise typer.Exit(130) from None
        except typer.TyperException as error:
            if error.exit_code != _WRONG_USAGE or not ctx.obj["json"]:
                raise
            _tell({"kind": "Usage", "message": error.format_message(), "hint": ""}, as_json=True)
            raise typer.Exit(_WRONG_USAGE) from None
        except Exception as error:
            told = describe(error)
            if told is None:
                raise
            _tell(told, as_json=ctx.obj["json"])
            raise typer.Exit(1) from None


def describe(error: Exception) -> dict[str, str] | None:
    """Kind, message and hint of an expected error; None for any other."""
    kind = type(error).__name__
    if isinstance(error, RollforwardError):
        text = str(error)
        told = {"kind": kind, "message": text.removesuffix(f"; hint: {error.hint}"), "hint": error.hint}
        # Who typed something wrong needs no page.
        return told if isinstance(error, InvalidInput) else {**told, "runbook": page_of(error)}
    if isinstance(error, InfraError):
        return {"kind": kind, "message": str(error).removesuffix(f" hint: {error.hint}"), "hint": error.hint}
    # Named, not imported: only a command that has loaded SQL or a database can raise their errors.
    if kind == "SqlError":
        hint = getattr(error, "hint", None) or ""
        return {"kind": kind, "message": str(error).removesuffix(f"\n  hint: {hint}"), "hint": hint}
    if type(error).__module__.startswith("sqlalchemy."):
        reason = str(getattr(error, "orig", None) or error).splitlines()[0]
        hint = "check metastore_url in rollforward.toml and that the database answers"
        return {"kind": "Unavailable", "message": f"metastore does not answer error=`{reason}`", "hint": hint}
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        return {"kind": kind, "message": str(error), "hint": ""}
    return None


def _tell(told: dict[str, str], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"error": told}, ensure_ascii=False), flush=True)
        return
    print(f"error: {told['message'].strip()}", file=sys.stderr)
    if told["hint"]:
        print(f"  hint: {told['hint']}", file=sys.stderr)
    if told.get("runbook"):
        print(f"  more: {told['runbook']}", file=sys.stderr)
