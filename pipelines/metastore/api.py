"""The metastore over HTTP: statements in, definitions out, one process of any number.

Every path but `/live`, `/ready`, `/docs` and `/openapi.json` wants `Authorization: Bearer <token>`. Errors are
`{"error": {"kind", "message", "hint"}}`: 400 the statement or request is wrong, 401 the token, 404 there is no such
thing, 409 the key was used for another statement, 411 and 413 the body's length is not told or too large, 500 a bug,
503 try again, or degraded.

`/live` and `/ready` are answered by the event loop itself, which nothing here blocks: statements that wait for Kafka may
take all threads.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Query, Request, status
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.security import HTTPBearer
from fastapi.security.utils import get_authorization_scheme_param
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, Field
from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp, Receive, Scope, Send
from swagger_ui_bundle import swagger_ui_path

from pipelines.database import unavailable
from pipelines.metastore.degraded import Fault
from pipelines.metastore.log import VALUE_BYTES_MAX
from pipelines.metastore.service import Metastore
from pipelines.metastore.statement import read_statement
from pipelines.metastore.validate import DESIRED, PIPELINE, unknown_pipeline
from pipelines.settings import Settings
from pipelines.sql import SqlError
from statestore.errors import InvalidConfig, InvalidInput, RollforwardError, Unavailable, Unrecoverable

log = structlog.get_logger()
FOLLOW_S = 0.5
# A look at the log takes some ms. Where none has ended for so long, what is shown may be old.
FRESH_S = 10.0
# Without the token, as is what lies in the folder.
OPEN, OPEN_FOLDER = ("/live", "/ready", "/docs", "/openapi.json"), "/static/"
# For the documents: `_Gate` looks at the token.
_bearer = HTTPBearer(auto_error=False, description="the token that `rollforward serve` names at its start")


class StatementIn(BaseModel):
    """A statement."""

    statement: str = Field(description="SQL of a pipeline, or RESUME name; PAUSE name; DROP PIPELINE name;")
    pipeline: str = Field("", description="name of the pipeline that the SQL is to become")


class OutcomeOut(BaseModel):
    """What became of a statement."""

    key: str = Field(description="the idempotency key; ask for it, or send the statement again with it, without harm")
    sequence: int | None = Field(description="number of its command in the log; null: there was nothing to change")
    changed: bool
    offset: int | None = Field(description="where it was written just now; null for a repeated or empty one")
    repeated: bool = Field(description="an earlier sending with the same key had put it there")
    applied: bool = Field(description="this server shows it already")
    names: list[str] = Field(description="queries that it defines")


class Service:
    """A metastore that follows its log in a thread of its own, from `start` to `close`."""

    def __init__(self, settings: Settings) -> None:
        self.metastore = Metastore(settings)
        self.restored = False
        self.fault: Fault | None = None
        self.error = ""
        self._looked_at = time.monotonic()
        self._prepare = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True, name="follower")

    def start(self) -> None:
        """Begin to restore and follow; returns at once."""
        self._thread.start()

    def close(self) -> None:
        """Stop following."""
        self._ended.set()
        self._thread.join(timeout=10)
        self.metastore.close()

    def _follow(self) -> None:
        while not self._ended.is_set():
            self.look()
            self._ended.wait(FOLLOW_S)

    def look(self) -> None:
        """One look at the log; what goes wrong is kept for `readiness`, and the next look may find it right."""
        try:
            if self._prepare:
                self.metastore.prepare()
            self.fault = self.metastore.refresh() if self.restored else self.metastore.restore()
            self.restored, self.error, self._prepare = True, "", False
        except Exception as error:  # whatever it is: a follower that has ended would leave the server ready and blind
            # The database may be another one when it is back.
            self._prepare = isinstance(error, SQLAlchemyError)
            self.error = str(_for_people(error))
            log.warning("log cannot be followed", service=self.metastore.service, error=self.error)
        self._looked_at = time.monotonic()

    def readiness(self) -> dict[str, Any]:
        """Whether statements can be accepted now, and if not why."""
        age_s = time.monotonic() - self._looked_at
        error = self.error or (f"log was last looked at {age_s:.0f} s ago" if age_s > FRESH_S else None)
        ready = self.restored and self.fault is None and error is None
        found = None if self.fault is None else self.fault.to_json()
        return {"ready": ready, "restored": self.restored, "degraded": found, "error": error}


def create_app(settings: Settings, token: str, *more: APIRouter) -> FastAPI:
    """The application for one server process. The token is at least 16 characters, and is asked for by `more` too."""
    if len(token) < 16:
        raise InvalidConfig("token is too short", length=len(token), hint="use at least 16 characters")
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> Any:
        service.start()
        yield
        service.close()

    app = FastAPI(
        title="Rollforward metastore",
        description=f"Definitions of service `{settings.service}`: statements are written to a log in Kafka.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    app.mount("/static", StaticFiles(directory=str(swagger_ui_path)), name="static")
    app.include_router(_open_routes(service))
    for router in (_routes(service), *more):
        app.include_router(router, dependencies=[Depends(_bearer)])
    app.add_middleware(_Gate, token=token)
    app.exception_handler(StarletteHTTPException)(_refused)
    app.exception_handler(RequestValidationError)(_malformed)
    app.exception_handler(RollforwardError)(_told)
    app.exception_handler(SqlError)(_told)
    app.exception_handler(SQLAlchemyError)(_told)
    app.exception_handler(Exception)(_bug)
    return app


class _Gate:
    """Looks at the token and at the body's length before anything reads the body: FastAPI would read it first."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        refused = self._refused(scope["path"], Headers(scope=scope)) if scope["type"] == "http" else None
        await (refused or self._app)(scope, receive, send)

    def _refused(self, path: str, headers: Headers) -> JSONResponse | None:
        if path in OPEN or path.startswith(OPEN_FOLDER):
            return None
        scheme, given = get_authorization_scheme_param(headers.get("Authorization"))
        # Compared as bytes: text that is not ASCII would be an error.
        if scheme.lower() != "bearer" or not secrets.compare_digest(given.encode(), self._token.encode()):
            answer = _error("Refused", "token is missing or wrong", "")
            return JSONResponse(answer, status.HTTP_401_UNAUTHORIZED, {"WWW-Authenticate": "Bearer"})
        if "Transfer-Encoding" in headers:
            hint = "send Content-Length"
            return JSONResponse(_error("Refused", "body's length is not told", hint), status.HTTP_411_LENGTH_REQUIRED)
        if int(headers.get("Content-Length", 0)) > VALUE_BYTES_MAX:
            answer = _error("Refused", "body is too large", f"send up to {VALUE_BYTES_MAX} bytes")
            return JSONResponse(answer, status.HTTP_413_CONTENT_TOO_LARGE)
        return None


def _open_routes(service: Service) -> APIRouter:
    routes = APIRouter(tags=["health"])

    @routes.get("/live", summary="The process answers")
    async def live() -> dict[str, bool]:
        return {"live": True}

    @routes.get("/ready", summary="Statements are accepted: 200, or 503 with the reason")
    async def ready() -> JSONResponse:
        found = service.readiness()
        return JSONResponse(found, 200 if found["ready"] else 503)

    @routes.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        # The page's own parts come from this server: it may stand where nothing else can be reached.
        return get_swagger_ui_html(
            openapi_url="openapi.json",
            title="Rollforward metastore",
            swagger_js_url="static/swagger-ui-bundle.js",
            swagger_css_url="static/swagger-ui.css",
            swagger_favicon_url="static/favicon-32x32.png",
        )

    return routes


def _routes(service: Service) -> APIRouter:
    routes = APIRouter()
    metastore = service.metastore

    @routes.post("/statements", tags=["statements"], summary="Run a statement", response_model=OutcomeOut)
    def execute(
        body: StatementIn, idempotency_key: Annotated[str | None, Header(max_length=255)] = None
    ) -> dict[str, Any]:
        """Returns when the command is in the log. Send it again with the same key when no answer came."""
        with _restored(service):
            return metastore.execute(read_statement(body.statement, body.pipeline), idempotency_key).to_json()

    @routes.get("/statements/{key:path}", tags=["statements"], summary="Learn whether a statement is in the log")
    def outcome(key: str) -> dict[str, Any]:
        """404: it is not, and no earlier sending will put it there."""
        with _restored(service):
            found = metastore.outcome(key)
        if found is None:
            raise HTTPException(404, "no statement with this key is in the log")
        return found._asdict()

    @routes.get("/pipelines", tags=["definitions"], summary="Every pipeline with its statements and desired state")
    def pipelines() -> list[dict[str, Any]]:
        with metastore.projection.snapshot() as snapshot:
            desired = snapshot.all(DESIRED)
            return [_pipeline(name, body, desired.get(name)) for name, body in snapshot.all(PIPELINE).items()]

    @routes.get("/pipelines/{name}", tags=["definitions"], summary="One pipeline")
    def pipeline(name: str) -> dict[str, Any]:
        with metastore.projection.snapshot() as snapshot:
            body = snapshot.get(PIPELINE, name)
            if body is None:
                raise HTTPException(404, unknown_pipeline(name, snapshot.names(PIPELINE)).message)
            return _pipeline(name, body, snapshot.get(DESIRED, name))

    @routes.get("/log", tags=["log"], summary="The newest commands, what was set aside, and where the log stands")
    def about(newest: Annotated[int, Query(ge=1, le=1_000)] = 100) -> dict[str, Any]:
        return {
            "service": metastore.service,
            "topic": metastore.log.topic_name,
            "sequence": metastore.projection.position().head.sequence,
            "commands": [row._asdict() for row in metastore.projection.commands(newest=newest)],
            "set_aside": [row._asdict() for row in metastore.projection.set_aside()],
            **service.readiness(),
        }

    @routes.post("/checkpoint", tags=["log"], summary="Replace the log's head by a checkpoint")
    def checkpoint() -> dict[str, Any]:
        with _restored(service):
            return metastore.checkpoint().to_json()

    return routes


@contextmanager
def _restored(service: Service) -> Iterator[None]:
    """Statements wait for nobody: before the log is restored they are refused."""
    if not service.restored:
        raise Unavailable("log is being restored", error=service.error, hint="wait until /ready answers 200")
    yield


def _pipeline(name: str, body: dict[str, Any], desired: dict[str, Any] | None) -> dict[str, Any]:
    return {"name": name, "desired": (desired or {}).get("state"), **body}


async def _refused(_: Request, error: StarletteHTTPException) -> JSONResponse:
    """A wrong token, path or name as an answer."""
    return JSONResponse(_error("Refused", str(error.detail), ""), error.status_code, error.headers)


async def _malformed(_: Request, error: RequestValidationError) -> JSONResponse:
    """A body or parameter that is not as documented."""
    wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
    return JSONResponse(_error("InvalidInput", f"request is wrong: {wrong}", "see /docs"), 400)


def _error(kind: str, message: str, hint: str) -> dict[str, Any]:
    return {"error": {"kind": kind, "message": message, "hint": hint}}


async def _told(_: Request, error: Exception) -> JSONResponse:
    """An expected error as an answer."""
    error = _for_people(error)
    hint = str(getattr(error, "hint", "") or "")
    message = str(error).removesuffix(f"; hint: {hint}").removesuffix(f"\n  hint: {hint}")
    code = 400 if isinstance(error, InvalidInput | InvalidConfig | SqlError) else 503
    if isinstance(error, InvalidInput) and "idempotency key was used" in message:
        code = 409
    kind = "MetastoreDegraded" if isinstance(error, Unrecoverable) else type(error).__name__
    return JSONResponse(_error(kind, message, hint), code)


def _for_people(error: Exception) -> Exception:
    return unavailable(error) if isinstance(error, SQLAlchemyError) else error


async def _bug(_: Request, error: Exception) -> JSONResponse:
    """What nobody expected; the server's log has the traceback."""
    hint = "ask for the statement's idempotency key before sending it again; the server's log says more"
    return JSONResponse(_error(type(error).__name__, f"server has failed: {error}", hint), 500)
