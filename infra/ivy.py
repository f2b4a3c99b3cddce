"""Fetching jars with the Ivy that PySpark ships.

Owns Ivy's two input files and its command line, so that no build tool has to be installed. The repository is the one
that Ivy's own Maven resolver has built in. Two ways to fetch: `exact` asks for listed jars and reads no descriptors
(one request a jar: 46 jars in 10 s), which is what users run; `transitive` lets Ivy choose (50 s for the same jars) and
is only for making a new lock file. Keeps nothing: Ivy's cache lives in the caller's temporary folder.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from infra.errors import InfraError, JarsUnavailable, log_tail
from infra.java import NETWORK_HINT, JavaHome

RETRIEVE_PATTERN = "[organisation]__[artifact]__[revision].[ext]"
FETCH_TIMEOUT_S = 900


@dataclass(frozen=True, order=True)
class Coordinate:
    """A Maven artifact: group, name, version."""

    org: str
    name: str
    rev: str

    @classmethod
    def parse(cls, text: str) -> Coordinate:
        """From `group:name:version`."""
        org, name, rev = text.split(":")
        return cls(org, name, rev)

    def __str__(self) -> str:
        return f"{self.org}:{self.name}:{self.rev}"


@dataclass(frozen=True)
class Request:
    """What Ivy is to fetch: roots with what they need, or, if `exact`, these and no others.

    `overrides` force a version wherever an artifact is needed; `exclude_orgs` and `exclude_names` (`group:name`) leave
    artifacts out.
    """

    roots: tuple[Coordinate, ...]
    exact: bool
    overrides: tuple[Coordinate, ...] = ()
    exclude_orgs: tuple[str, ...] = ()
    exclude_names: tuple[str, ...] = ()


def fetch(request: Request, *, into: Path, work: Path, java: JavaHome) -> dict[Coordinate, Path]:
    """Fetches into `into` and returns the files by coordinate; raises JarsUnavailable with the end of Ivy's log.

    `work` is a folder of the caller that holds Ivy's own files and may be deleted afterwards.
    """
    settings, module, log = work / "settings.xml", work / "module.xml", work / "ivy.log"
    settings.write_text(_settings(request), encoding="utf-8")
    module.write_text(_module(request), encoding="utf-8")
    arguments = [
        f"-Divy.default.ivy.user.dir={work / 'user'}",
        *("-jar", str(ivy_jar()), "-settings", str(settings), "-ivy", str(module), "-cache", str(work / "cache")),
        *("-confs", "x", "-types", "jar", "bundle", "-retrieve", str(into / RETRIEVE_PATTERN)),
    ]
    code = java.run(arguments, log=log, timeout_s=FETCH_TIMEOUT_S)
    if code != 0:
        raise JarsUnavailable(f"jars could not be fetched:{log_tail(log)}", code=code, hint=NETWORK_HINT)
    files = {Coordinate(*file.stem.split("__")): file for file in into.glob("*__*__*.jar")}
    if request.exact and set(request.roots) - set(files):
        missing = ", ".join(map(str, sorted(set(request.roots) - set(files))))
        raise JarsUnavailable(
            f"some jars were not found:{log_tail(log)}",
            missing=missing,
            hint="check the network, then run the same again",
        )
    return files


def ivy_jar() -> Path:
    """Ivy's jar in the installed PySpark, found without importing PySpark."""
    spec = importlib.util.find_spec("pyspark")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = sorted(jar for folder in folders for jar in (Path(folder) / "jars").glob("ivy-*.jar"))
    if not found:
        raise InfraError(
            "pyspark's ivy jar is not there", looked_in=folders, hint="install the project's dependencies again"
        )
    return found[-1]


def _settings(request: Request) -> str:
    # The checksums beside the jars are not read where our own digests follow: half the requests.
    exact = ' usepoms="false" checksums=""' if request.exact else ""
    return (
        '<ivysettings><settings defaultResolver="r"/>'
        f'<resolvers><ibiblio name="r" m2compatible="true"{exact}/></resolvers></ivysettings>\n'
    )


def _module(request: Request) -> str:
    transitive = "false" if request.exact else "true"
    lines = [
        '<ivy-module version="2.0"><info organisation="rollforward" module="jars"/>',
        '<configurations><conf name="x"/></configurations><dependencies>',
        # With x->runtime the artifact itself would be missing.
        *(f'<dependency {_attributes(root)} conf="x->default" transitive="{transitive}"/>' for root in request.roots),
        *(f"<exclude org={quoteattr(org)}/>" for org in request.exclude_orgs),
        *(_exclude(name) for name in request.exclude_names),
        *(
            f"<override org={quoteattr(c.org)} module={quoteattr(c.name)} rev={quoteattr(c.rev)}/>"
            for c in request.overrides
        ),
        "</dependencies></ivy-module>\n",
    ]
    return "\n".join(lines)


def _attributes(root: Coordinate) -> str:
    return f"org={quoteattr(root.org)} name={quoteattr(root.name)} rev={quoteattr(root.rev)}"


def _exclude(text: str) -> str:
    org, name = text.split(":")
    return f"<exclude org={quoteattr(org)} module={quoteattr(name)}/>"
