"""HTTP for processes of flowengine: routes, requests and responses; `server` needs tornado."""

from flowengine.http.messages import Handler, Request, Response, Route, RouteTable, problem

__all__ = ["Handler", "Request", "Response", "Route", "RouteTable", "problem"]
