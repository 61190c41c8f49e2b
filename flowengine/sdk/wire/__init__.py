"""The wire form of the SDK: agents in other languages, over HTTP and JSON.

`server` needs the extra `http`; nothing else of flowengine loads it.
"""
