"""Link calls: what is called, and with which arguments."""

from __future__ import annotations

from flowengine.program.expressions import Constants, EvaluationError, evaluate, references
from flowengine.program.names import did_you_mean
from flowengine.program.nodes import Call, Expression, Field, StepStatement
from flowengine.program.plan import FacetPlan, StatementPlan
from flowengine.program.types import field_misfit
from flowengine.program.wiring import Wiring, repeated


class CallLinker(Wiring):
    """Links calls."""

    def _call(self, node: StepStatement, plan: StatementPlan, where: str) -> None:
        resolved = self.names.resolve(node.call.target, self._seen_from)
        if isinstance(resolved, str):
            self._problem(where, resolved)
            return
        if resolved.name not in self.plan.facets:
            self._problem(
                where,
                f"{resolved.name!r} is a schema, and schema instances are not executed by this "
                "version of flowengine",
            )
            return
        plan.facet = facet = self.plan.facets[resolved.name]
        given = self._arguments(node.call, facet, where)
        defaults = [
            (param.name, param.default)
            for param in facet.params
            if param.default is not None and param.name not in given
        ]
        plan.arguments = (*given.items(), *defaults)

    def _arguments(self, call: Call, facet: FacetPlan, where: str) -> dict[str, Expression]:
        given = {argument.name: argument.value for argument in call.arguments}
        for name in repeated(argument.name for argument in call.arguments):
            self._problem(where, f"argument {name!r} is given twice")
        known = {param.name: param for param in facet.params}
        for name, value in given.items():
            if name not in known:
                hint = did_you_mean(name, list(known))
                self._problem(where, f"{facet.name!r} has no parameter {name!r}{hint}")
            elif why := self._literal_misfit(known[name], value):
                self._problem(where, f"argument {name!r} of {facet.name!r}: {why}")
        for name, param in known.items():
            if name not in given and param.default is None:
                self._problem(where, f"{facet.name!r} needs an argument {name!r}")
        return given

    def _literal_misfit(self, param: Field, value: Expression) -> str:
        if any(True for _ in references(value)):
            return ""
        try:
            return field_misfit(param, evaluate(value, Constants()))
        except EvaluationError:
            return ""  # fails the step at run time, like any argument without a value
