"""A small MCP server with everything that a proxy could break: `python example_server.py`, or with a port over HTTP."""

import os
import sys

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ToolAnnotations
from pydantic import BaseModel

server = MCPServer("example")


class Name(BaseModel):
    name: str


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def get_sum(a: int, b: int) -> int:
    """Adds."""
    return a + b


@server.tool()
def get_text(length: int) -> str:
    """A text of some length."""
    return "".join(chr(65 + i % 26) for i in range(1000)) * (length // 1000)


@server.tool()
async def get_slowly(steps: int, ctx: Context) -> str:
    """Reports progress."""
    for step in range(steps):
        await ctx.report_progress(step, steps, f"step {step}")
    return "done"


@server.tool()
async def get_never(file: str) -> str:
    """Waits until it is cancelled, and leaves a file that says how far it came."""
    with open(file, "w") as left:
        left.write("started")
    try:
        await anyio.sleep_forever()
    finally:
        with open(file, "w") as left:
            left.write("cancelled")
    return "never"


@server.tool()
async def get_name(ctx: Context) -> str:
    """Asks the person at the client."""
    asked = await ctx.elicit("Who are you?", Name)
    return asked.data.name if asked.action == "accept" else asked.action


@server.tool(annotations=ToolAnnotations(destructive_hint=True))
def delete_everything(file: str) -> str:
    """Leaves a file, so that a test sees that it ran."""
    with open(file, "w") as left:
        left.write("deleted")
    return "deleted"


@server.tool()
def pay_invoice(amount: int, file: str) -> str:
    """Leaves a file."""
    with open(file, "w") as left:
        left.write("done")
    return "paid"


@server.tool()
def write_file(path: str, content: str) -> str:
    """Writes a file."""
    with open(path, "w") as written:
        written.write(content)
    return "written"


@server.tool()
def get_crash() -> str:
    """Ends the server."""
    os._exit(7)


@server.resource("example://text")
def text() -> str:
    return "a resource\n" * 3


@server.resource("example://{name}/half")
def half(name: str) -> str:
    return name * 2


@server.prompt()
def greet(name: str) -> str:
    return f"Greet {name}."


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
