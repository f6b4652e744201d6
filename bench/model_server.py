"""A chat-completions server that costs next to nothing: `text-N` answers with N chunks."""

import asyncio
import json
import sys

WORDS = ("lorem ", "ipsum ", "dolor ", "amet, ", "elit, ", "magna ", "aliqua ", "veniam ")
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def framed(payload: object) -> bytes:
    data = (
        b"data: "
        + (payload if isinstance(payload, bytes) else json.dumps(payload).encode())
        + b"\n\n"
    )
    return b"%x\r\n%b\r\n" % (len(data), data)


def chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
    return framed({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


PIECES = [chunk({"content": word}) for word in WORDS]


def answer(model: str) -> list[bytes]:
    count = int(model.partition("text-")[2] or 1)
    usage = framed({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": count}})
    return [
        *[PIECES[at % len(PIECES)] for at in range(count)],
        chunk({}, "stop"),
        usage,
        framed(b"[DONE]") + b"0\r\n\r\n",
    ]


async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
            model = json.loads(await reader.readexactly(length))["model"]
            frames = answer(model)
            writer.write(HEAD + frames[0])
            for at, frame in enumerate(frames[1:]):
                writer.write(frame)
                if at % 64 == 63:
                    await writer.drain()
                    await asyncio.sleep(0)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main(port: int) -> None:
    server = await asyncio.start_server(serve_one, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
