"""The official MCP SDK as a server, for the tests of the MCP client.

Prints its URL on the first line. Options: `--stateless` and `--json` are the SDK's own modes; `--refuse ERA` makes the server
look older than it is (`modern`: it does not know the stateless era; `plain`: it wants an initialize first).
"""

import argparse
import asyncio
import socket

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("peer", log_level="ERROR")


@server.tool()
async def count(n: int, context: Context) -> dict[str, int]:
    """Sends n progress notifications."""
    for i in range(n):
        await context.report_progress(i, message=f"line {i}\n")
    return {"n": n}


@server.tool()
async def hang(context: Context) -> dict[str, bool]:
    """Sends one notification and waits to be cancelled; says so on standard output."""
    await context.report_progress(0, message="line 0\n")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        print("cancelled", flush=True)
        raise
    return {"cancelled": False}


@server.tool()
async def fail() -> None:
    """Fails as a tool does."""
    raise ToolError("NOT_FOUND: no such runtime")


def older(app, refuse):
    """The app without what newer protocol versions added."""

    async def wrapped(scope, receive, send):
        if scope["type"] == "http":
            headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
            version = headers.get("mcp-protocol-version")
            body = b""
            while True:
                message = await receive()
                body += message.get("body", b"")
                if not message.get("more_body"):
                    break
            is_refused = ("modern" in refuse and version == "2026-07-28") or (
                "plain" in refuse and version is None and b'"initialize"' not in body
            )
            if is_refused:
                await send({"type": "http.response.start", "status": 400, "headers": []})
                await send({"type": "http.response.body", "body": b"Bad Request"})
                return
            replayed = False

            async def receive_again():
                nonlocal replayed
                if replayed:
                    return await receive()
                replayed = True
                return {"type": "http.request", "body": body, "more_body": False}

            await app(scope, receive_again, send)
        else:
            await app(scope, receive, send)

    return wrapped


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stateless", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--refuse", action="append", default=[])
    options = parser.parse_args()
    app = server.streamable_http_app(stateless_http=options.stateless, json_response=options.json)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    config = uvicorn.Config(older(app, options.refuse), log_level="warning")
    uvicorn.Server(config).run(sockets=[listener])


main()
