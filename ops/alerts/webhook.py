"""`POST /alerts`: Alertmanager's webhook, as part of `rollforward serve`, behind the same token.

It only writes rows. Deliveries come more than once and in any order; what is said twice changes nothing. The sensor
`alerts` starts the runs.
"""

# Annotations stay real here: FastAPI reads them.
from contextlib import closing
from typing import Annotated, Any

from fastapi import APIRouter, Query, status

from ops.alerts.alert import from_webhook
from ops.alerts.incidents import Incidents
from ops.alerts.routes import routes_of
from pipelines.database import open_database
from pipelines.settings import Settings


def alert_routes(settings: Settings) -> APIRouter:
    """The path, for an application that asks for the token."""
    router = APIRouter(tags=["alerts"])

    @router.post("/alerts", status_code=status.HTTP_202_ACCEPTED)
    def take(payload: dict[str, Any]) -> dict[str, int]:
        """Take in what Alertmanager tells (webhook payload version 4)."""
        alerts = from_webhook(payload)
        with closing(_Database(settings)) as database:
            Incidents(database.engine, routes_of(settings)).take_in(alerts, complete=False)
        return {"alerts": len(alerts)}

    @router.get("/incidents")
    def list_incidents(pipeline: str = "", limit: Annotated[int, Query(ge=1, le=1_000)] = 50) -> list[dict[str, Any]]:
        """The newest incidents first, with the runs that were started about them."""
        with closing(_Database(settings)) as database:
            return Incidents(database.engine, routes_of(settings)).newest(limit, pipeline=pipeline)

    return router


class _Database:
    """The metastore's database for one request: a home that was wiped meanwhile is not held by an old connection."""

    def __init__(self, settings: Settings) -> None:
        self.engine = open_database(settings.metastore)

    def close(self) -> None:
        self.engine.dispose()
