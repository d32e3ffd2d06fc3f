"""The HTTP side of `serve`: gauges, JSON, health and a page, all of the last finished round."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.gzip import GZipMiddleware

from phasewatch.core.report.document import SCHEMA
from phasewatch.core.report.said import vocabulary
from phasewatch.service.service import Service
from phasewatch.service.yamlfile import nearest

STATIC = Path(__file__).parent / "static"
READ = ["GET", "HEAD"]
ENGINE_FILTERS = ("target", "model_name", "engine")
# The page loads nothing from elsewhere and runs no script but its own, whatever a model calls itself.
SECURITY: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
# What changes each round is asked for anew; the page's own files are small.
NO_STORE = {"Cache-Control": "no-cache"}


def create_app(service: Service) -> FastAPI:
    """The application over a service, which the caller starts and stops."""
    app = FastAPI(title="phasewatch", redirect_slashes=False, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=5)

    @app.middleware("http")
    async def add_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        response = await call_next(request)
        response.headers.update({**SECURITY, **NO_STORE})
        return response

    @app.exception_handler(StarletteHTTPException)
    async def refused(_: Request, error: StarletteHTTPException) -> JSONResponse:
        return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": f"internal error in phasewatch ({type(error).__name__}); see its log"}, 500)

    @app.api_route("/metrics", methods=READ)
    async def metrics(request: Request) -> Response:
        page, content_type = service.round.metrics(request.headers.get("accept", ""))
        return Response(page, headers={"Content-Type": content_type})

    @app.api_route("/api/v1/fleet", methods=READ)
    async def fleet(request: Request) -> JSONResponse:
        _known_parameters(request, ())
        interval = f"{service.config.scrape.interval:g}"
        return JSONResponse(service.round.document, headers={"Phasewatch-Interval-Seconds": interval})

    @app.api_route("/api/v1/vocabulary", methods=READ)
    async def words(request: Request) -> JSONResponse:
        _known_parameters(request, ())
        return JSONResponse(vocabulary())

    @app.api_route("/api/v1/engines", methods=READ)
    async def engines(request: Request) -> JSONResponse:
        _known_parameters(request, ENGINE_FILTERS)
        document = service.round.document
        wanted = request.query_params.items()
        found: list[dict[str, Any]] = [
            engine for engine in document["engines"] if all(engine[key] == value for key, value in wanted)
        ]
        return JSONResponse({"schema": SCHEMA, "at": document["at"], "engines": found})

    @app.api_route("/-/healthy", methods=READ)
    async def healthy() -> Response:
        return PlainTextResponse("phasewatch is alive.\n")

    @app.api_route("/-/ready", methods=READ)
    async def ready() -> Response:
        why = service.unready
        return PlainTextResponse("phasewatch is ready.\n") if why is None else PlainTextResponse(f"{why}\n", 503)

    @app.api_route("/", methods=READ)
    async def page() -> Response:
        return FileResponse(STATIC / "index.html", media_type="text/html; charset=utf-8")

    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app


def _known_parameters(request: Request, known: tuple[str, ...]) -> None:
    for name in request.query_params:
        if name not in known:
            raise HTTPException(400, f"unknown parameter {name!r}; {nearest(name, known)}")
