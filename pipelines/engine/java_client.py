"""The clients' settings as Spark's Kafka source wants them: librdkafka's names are said in Java's.

One set of settings serves all clients: `security.protocol`, `sasl.mechanism`, `sasl.username`, `sasl.password`, and PEM
files for TLS (`ssl.ca.location`, `ssl.certificate.location`, `ssl.key.location`). Settings of librdkafka alone are left
out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from statestore.errors import InvalidConfig

_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def java_settings(client: Mapping[str, str]) -> dict[str, str]:
    """Security settings by Java's names. Raises `InvalidConfig` for a mechanism that Java could not be told."""
    settings = {"security.protocol": client["security.protocol"]} if "security.protocol" in client else {}
    return {**settings, **_sasl(client), **_ssl(client)}


def _sasl(client: Mapping[str, str]) -> dict[str, str]:
    mechanism = client.get("sasl.mechanism") or client.get("sasl.mechanisms")
    if not mechanism:
        return {}
    if mechanism not in _MODULES:
        raise InvalidConfig(
            "sasl.mechanism cannot be used", mechanism=mechanism, hint=f"use one of {', '.join(_MODULES)}"
        )
    name, password = (_quoted(client.get(f"sasl.{part}", "")) for part in ("username", "password"))
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{_MODULES[mechanism]} required username={name} password={password};",
    }


def _quoted(text: str) -> str:
    """As JAAS reads it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _ssl(client: Mapping[str, str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    if "ssl.ca.location" in client:
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": client["ssl.ca.location"]}
    if "ssl.certificate.location" in client and "ssl.key.location" in client:
        settings |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": Path(client["ssl.certificate.location"]).read_text(),
            "ssl.keystore.key": Path(client["ssl.key.location"]).read_text(),
        }
    if "ssl.key.password" in client:
        settings["ssl.key.password"] = client["ssl.key.password"]
    if "ssl.endpoint.identification.algorithm" in client:
        named = client["ssl.endpoint.identification.algorithm"]
        settings["ssl.endpoint.identification.algorithm"] = "" if named == "none" else named
    return settings
