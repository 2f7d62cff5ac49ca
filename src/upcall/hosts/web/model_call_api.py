"""The path of a model call: what the model got and what came back, rebuilt from the log."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from upcall.app import Runtime
from upcall.contracts import ModelCall
from upcall.hosts.web.exchange import Refusal, large_json_response, number
from upcall.hosts.web.log import Log
from upcall.hosts.web.service import Service, answering_errors, path_id
from upcall.observe.capture import model_call_json

_MOST = 1 << 31


class ModelCallApi:
    """Handles the path of a model call."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """The path with its handler."""
        return [Route("/api/sessions/{id}/calls/{ordinal:int}", answering_errors(self.model_call), methods=["GET"])]

    async def model_call(self, request: Request) -> Response:
        """A model call by its number; `seq` names one of several with that number: a summary, or a repetition."""
        session, ordinal = path_id(request), min(int(request.path_params["ordinal"]), _MOST)
        seq = number(request, "seq", 0, _MOST)

        async def read(log: Log) -> dict[str, Any]:
            call = await log.runtime.model_call(session, ordinal, seq=seq)
            if call is None or call.ordinal != ordinal:
                raise Refusal(404, f"session {session!r} has no model call {ordinal}")
            before, redactor = await _before(log.runtime, call), log.kept.redactor
            earlier = None if before is None else model_call_json(before, redactor)["request"]
            return {**model_call_json(call, redactor, log.kept.cost), "before": earlier}

        return await large_json_response(await self._service.read(read))


async def _before(runtime: Runtime, call: ModelCall) -> ModelCall | None:
    """The model call before this one; of a summary, the one that it follows."""
    ordinal = call.ordinal if call.purpose == "summary" else call.ordinal - 1
    found = await runtime.model_call(call.session, ordinal) if ordinal > 0 else None
    return None if found is None or found.seq >= call.seq else found
