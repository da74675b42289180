"""A model on the loopback: it asks an agent's own shell tool for one command, then says that it is done.

Owns: the answers in the four protocols that agents speak. What the agent does with the command is its
own code; the model is the hostile part, and it needs no account. Read next: ``test_agents.py``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMAND = "sh loot.sh"
SHELLS = ("exec_command", "Bash", "bash", "run_shell_command", "shell", "shell_command")
RESULTS = ("function_call_output", '"tool_result"', '"role":"tool"', "functionResponse")
USAGE = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, "prompt_tokens": 1, "completion_tokens": 1}


@contextmanager
def local_model() -> Iterator[str]:
    """Serve until the caller is done; yields the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Model)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


class _Model(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """No list of models, no account."""
        self.send_error(404)

    def do_POST(self) -> None:
        """One turn: the command where a shell is offered and has not answered yet, else the end."""
        text = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        body = json.loads(text or "{}")
        tool = None if any(mark in text.replace(": ", ":") for mark in RESULTS) else _shell(body)
        path = self.path.partition("?")[0]
        speak = next((speak for end, speak in _SPEAKERS if path.endswith(end)), None)
        if speak is None:
            self.send_error(404)
            return
        data = speak(tool, bool(body.get("stream")) or "stream" in path)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if data.startswith(("data", "event")) else "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data.encode())


def _shell(body: dict[str, Any]) -> tuple[str, dict[str, str]] | None:
    """The agent's shell tool among those that it offers, with the command as it wants it."""
    for tool in body.get("tools") or ():
        for each in (tool, tool.get("function", {}), *tool.get("functionDeclarations", ())):
            if each.get("name") in SHELLS:
                schema = next((each[key] for key in ("parameters", "input_schema", "parametersJsonSchema") if each.get(key)), {})
                known = schema.get("properties", {})
                given = {"cmd" if "cmd" in known else "command": COMMAND, "description": "look around"}
                return each["name"], {key: value for key, value in given.items() if key in known}
    return None


def _events(*events: dict[str, Any]) -> str:
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


def _responses(tool: tuple[str, dict[str, str]] | None, _: bool) -> str:
    item: dict[str, Any] = {"type": "message", "role": "assistant", "id": "m1", "content": [{"type": "output_text", "text": "done"}]}
    if tool:
        item = {"type": "function_call", "id": "f1", "call_id": "c1", "name": tool[0], "arguments": json.dumps(tool[1])}
    return _events({"type": "response.created", "response": {"id": "r1"}}, {"type": "response.output_item.done", "item": item},
                   {"type": "response.completed", "response": {"id": "r1", "usage": USAGE}})


def _messages(tool: tuple[str, dict[str, str]] | None, stream: bool) -> str:
    block: dict[str, Any] = {"type": "tool_use", "id": "t1", "name": tool[0], "input": tool[1]} if tool else {"type": "text", "text": "done"}
    message = {"id": "m1", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None, "usage": USAGE}
    reason = "tool_use" if tool else "end_turn"
    if not stream:
        return json.dumps({**message, "content": [block], "stop_reason": reason})
    delta = {"type": "input_json_delta", "partial_json": json.dumps(tool[1])} if tool else {"type": "text_delta", "text": "done"}
    start = {**block, "input": {}} if tool else {**block, "text": ""}
    return _events({"type": "message_start", "message": {**message, "content": [], "stop_reason": None}},
                   {"type": "content_block_start", "index": 0, "content_block": start},
                   {"type": "content_block_delta", "index": 0, "delta": delta}, {"type": "content_block_stop", "index": 0},
                   {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": USAGE},
                   {"type": "message_stop"})


def _chat(tool: tuple[str, dict[str, str]] | None, stream: bool) -> str:
    message: dict[str, Any] = {"role": "assistant", "content": None if tool else "done"}
    if tool:
        message["tool_calls"] = [{"index": 0, "id": "c1", "type": "function",
                                  "function": {"name": tool[0], "arguments": json.dumps(tool[1])}}]
    reason = "tool_calls" if tool else "stop"
    head = {"id": "x", "created": 1, "model": "m"}
    if not stream:
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return json.dumps({**head, "object": "chat.completion", "choices": [choice], "usage": USAGE})
    parts = [{"index": 0, "delta": message, "finish_reason": None}, {"index": 0, "delta": {}, "finish_reason": reason}]
    chunks = [{**head, "object": "chat.completion.chunk", "choices": [part]} for part in parts]
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in [*chunks, {**head, "choices": [], "usage": USAGE}]) + "data: [DONE]\n\n"


def _gemini(tool: tuple[str, dict[str, str]] | None, stream: bool) -> str:
    part: dict[str, Any] = {"functionCall": {"name": tool[0], "args": tool[1]}} if tool else {"text": "done"}
    answer = json.dumps({"candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}],
                         "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}})
    return f"data: {answer}\n\n" if stream else answer


_SPEAKERS = (("/responses", _responses), ("/messages", _messages), ("/chat/completions", _chat),
             (":streamGenerateContent", _gemini), (":generateContent", _gemini))
