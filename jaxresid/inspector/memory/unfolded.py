"""Put back the layers that `jaxpr.repeats` left out: the kernels of a few layers -> those of all.

Of the layers that are left, two in the middle have to lead to the same kernels in the same order,
reading the same of each other and of their neighbours. Then the kernels of each layer that was left
out are those of these two, and the whole program's peak is that of all kernels, to the last byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.alike.repeats import BEFORE, LAST, Layer, Run, has_layer, layers_of
from jaxresid.inspector.jaxpr.phases import BACKWARD, FORWARD, RECOMPUTE
from jaxresid.inspector.memory.lowered import Lowered, Whole
from jaxresid.inspector.memory.rules.kernels import Kernels
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.program.ops import Block, Op, Value

# The last layer that stays in front of those that come back, and the first that stays behind them.
_FRONT, _BEHIND = BEFORE - 1, BEFORE


class _NotAlikeError(Exception):
    """The layers do not lead to the same kernels."""


def unfolded(lowered: Lowered, runs: Iterable[Run], gradients: Mapping[int, int]) -> Lowered | None:
    """Return a lowered program with the kernels of the whole; None where layers are not alike.

    Args:
      gradients: for each of its inputs by number, the number of the output that is its gradient.
    """
    program, block = lowered.program, lowered.block
    assert isinstance(block, Kernels)
    tags = [f"{op.context.tags}/{jax_compat.name_stack(op.eqn)}" for op in block.ops]
    state = _State(
        list(block.ops),
        list(block.ops),
        layers_of(tags),
        {op for op, tag in zip(block.ops, tags, strict=True) if has_layer(tag)},
        list(block.inputs),
        list(block.outputs),
        list(program.block.outputs),
        dict(block.nbytes),
    )
    roles, outputs = list(program.inputs), list(program.outputs)
    try:
        for run in runs:
            layers = _Layers(state, run, gradients)
            layers.put_back()
            for i in run.inputs[_BEHIND]:
                roles += [program.inputs[i]] * run.omitted
                if i in gradients:
                    outputs += [program.outputs[gradients[i]]] * run.omitted
    except _NotAlikeError:
        return None
    whole = Kernels(tuple(state.inputs), tuple(state.ops), tuple(state.outputs), state.nbytes)
    whole_program = Program(
        Block(whole.inputs, (), tuple(state.returned)), tuple(roles), tuple(outputs)
    )
    return replace(lowered, whole=Whole(whole_program, whole, tuple(state.templates)))


@dataclass(slots=True)
class _State:
    """The kernels so far.

    Attributes:
      templates: for each the one of the shortened program.
      layers: for each the run and the layer that it belongs to.
      labelled: the kernels of the shortened program whose layer is written on them.
      returned: the outputs as the program has them.
    """

    ops: list[Op]
    templates: list[Op]
    layers: list[Layer | None]
    labelled: set[Op]
    inputs: list[Value]
    outputs: list[Value]
    returned: list[Value]
    nbytes: dict[Value, int]


@dataclass(frozen=True, slots=True)
class _Zone:
    """A stretch of the program that goes through all layers, from the first or from the last on.

    `begins` is where the kernels of each layer begin.
    """

    begins: Sequence[int]
    is_ascending: bool


def _are_in_order(zones: Iterable[_Zone]) -> bool:
    begins: list[int] = []
    for zone in zones:
        # Those of the last layer may be anywhere, and those of the first where nothing follows.
        begins += zone.begins[:LAST] if zone.is_ascending else reversed(zone.begins[1:LAST])
    return min(begins) >= 0 and begins == sorted(set(begins))


# A kernel's layer, and its number among the kernels of its layer.
_Token = tuple[int, int]


class _Layers:
    """The layers of one run."""

    def __init__(self, state: _State, run: Run, gradients: Mapping[int, int]) -> None:
        self._state, self._run, self._gradients = state, run, gradients
        self._omitted = run.omitted
        counts = Counter[int]()
        self._tokens: list[_Token | None] = []
        self._ops: list[list[Op]] = [[] for _ in range(LAST + 1)]
        # Which kernel, and which of its results, a value is.
        self._origins: dict[Value, tuple[_Token, int]] = {}
        for op, layer in zip(state.ops, state.layers, strict=True):
            if layer is None or layer[0] != run.number:
                self._tokens.append(None)
                continue
            at = layer[1]
            token = at, counts[at]
            counts[at] += 1
            self._tokens.append(token)
            self._ops[at].append(op)
            self._origins.update((v, (token, i)) for i, v in enumerate(op.results))
        # The inputs of the layers: the layer and the number among its own.
        self._own: dict[Value, tuple[int, int]] = {
            state.inputs[i]: (layer, slot)
            for layer, own in enumerate(run.inputs)
            for slot, i in enumerate(own)
        }
        self._new_inputs: dict[tuple[int, int], Value] = {}
        self._made: dict[tuple[int, int, int], Value] = {}

    def put_back(self) -> None:
        self._check_alike()
        state, more = self._state, self._omitted
        zones = self._zones()
        for slot, i in enumerate(self._run.inputs[_BEHIND]):
            value = state.inputs[i]
            for layer in range(_BEHIND, _BEHIND + more):
                new = self._like(value)
                self._new_inputs[layer, slot] = new
        old_ops, old_layers, old_templates = state.ops, state.layers, state.templates
        ops: list[Op] = []
        layers: list[Layer | None] = []
        templates: list[Op] = []

        def put(start: int, stop: int, shift: int, *, is_new: bool = False) -> None:
            for i in range(start, stop):
                ops.append(self._op(i, shift, is_new=is_new))
                layers.append(None if is_new else old_layers[i])
                templates.append(old_templates[i])

        at, moved = 0, 0
        for zone in zones:
            if zone.is_ascending:
                put(at, zone.begins[0], moved)
                put(zone.begins[0], zone.begins[_BEHIND], 0)
                for shift in range(1, more + 1):
                    put(zone.begins[_FRONT], zone.begins[_BEHIND], shift, is_new=True)
                at, moved = zone.begins[_BEHIND], more
            else:
                put(at, zone.begins[_FRONT], moved)
                for shift in range(more - 1, -1, -1):
                    put(zone.begins[_BEHIND], zone.begins[_FRONT], shift, is_new=True)
                at, moved = zone.begins[_FRONT], 0
        put(at, len(old_ops), moved)
        self._outputs()
        state.ops, state.layers, state.templates = ops, layers, templates
        state.inputs = [*state.inputs, *self._new_inputs.values()]

    # -- what is alike -----------------------------------------------------------------------

    def _check_alike(self) -> None:
        one, other = self._ops[_FRONT], self._ops[_BEHIND]
        if len(one) != len(other):
            raise _NotAlikeError
        for a, b in zip(one, other, strict=True):
            is_same = (
                a.name == b.name
                and a.phase == b.phase
                and len(a.bodies) == len(b.bodies)
                and [self._type(v) for v in a.results] == [self._type(v) for v in b.results]
            )
            if not is_same:
                raise _NotAlikeError
            self._check_reads(a.operands, b.operands)
            self._check_reads(_overwrites(a), _overwrites(b))

    def _check_reads(self, one: Sequence[Value], other: Sequence[Value]) -> None:
        if len(one) != len(other):
            raise _NotAlikeError
        for a, b in zip(one, other, strict=True):
            origin, own = self._origins.get(a), self._own.get(a)
            if own is not None:
                is_same = own[0] == _FRONT and self._own.get(b) == (_BEHIND, own[1])
            elif origin is None:
                is_same = a is b
            elif a is b:
                is_same = origin[0][0] in (0, LAST)
            else:
                (layer, number), which = origin
                is_near = abs(layer - _FRONT) <= 1
                is_same = is_near and self._origins.get(b) == ((layer + 1, number), which)
            if not is_same or self._type(a) != self._type(b):
                raise _NotAlikeError

    def _type(self, v: Value) -> tuple[object, ...]:
        nbytes = self._state.nbytes.get(v)
        return v.shape, v.dtype, v.itemsize, v.memory, v.whole, v.spec, nbytes

    def _zones(self) -> Sequence[_Zone]:
        """Return the stretches of the program that go through all layers, one after another.

        They are the forward pass and the backward pass, which recomputes a layer when it comes to
        it; in a checkpoint around all layers it recomputes them from the first on before.
        """
        ahead = self._zone((FORWARD,), is_ascending=True)
        behind = self._zone((BACKWARD,), is_ascending=False)
        zones = [ahead, self._zone((RECOMPUTE, BACKWARD), is_ascending=False)]
        if not _are_in_order(zones):
            zones = [ahead, self._zone((RECOMPUTE,), is_ascending=True), behind]
        if not _are_in_order(zones):
            raise _NotAlikeError
        for zone in zones:
            begins = zone.begins
            stretches = [
                self._stretch(begins[at], begins[at + 1], at)
                if zone.is_ascending
                else self._stretch(begins[at + 1], begins[at], at)
                for at in range(1, LAST - 1)
            ]
            if any(stretch != stretches[0] for stretch in stretches):
                raise _NotAlikeError
        return zones

    def _zone(self, phases: Container[str], *, is_ascending: bool) -> _Zone:
        begins: dict[int, int] = {}
        for i, (op, token) in enumerate(zip(self._state.templates, self._tokens, strict=True)):
            if token is not None and op.phase in phases and op in self._state.labelled:
                begins.setdefault(token[0], i)
        return _Zone([begins.get(layer, -1) for layer in range(LAST + 1)], is_ascending)

    def _stretch(self, start: int, stop: int, layer: int) -> list[_Token]:
        tokens = []
        for token in self._tokens[start:stop]:
            if token is None or abs(token[0] - layer) > 1:
                raise _NotAlikeError
            tokens.append((token[0] - layer, token[1]))
        return tokens

    # -- what is made ------------------------------------------------------------------------

    def _op(self, i: int, shift: int, *, is_new: bool) -> Op:
        """Return a kernel, its layer moved on by `shift`; a new one writes arrays of its own."""
        op, token = self._state.ops[i], self._tokens[i]
        if token is not None and token[0] in (0, LAST):
            shift = self._omitted if token[0] else 0
        operands = tuple(self._read(v, token, shift) for v in op.operands)
        overwrites = tuple(self._read(v, token, shift) for v in _overwrites(op))
        results = op.results
        if token is not None:
            if is_new:
                results = tuple(self._like(v) for v in results)
            for which, v in enumerate(results):
                key = token[0] + shift, token[1], which
                if key in self._made:
                    raise _NotAlikeError
                self._made[key] = v
        if not is_new and operands == op.operands and overwrites == _overwrites(op):
            return op
        return replace(op, operands=operands, results=results, overwrites=overwrites)

    def _like(self, value: Value) -> Value:
        new = value.copy()
        if value in self._state.nbytes:
            self._state.nbytes[new] = self._state.nbytes[value]
        return new

    def _read(self, value: Value, token: _Token | None, shift: int) -> Value:
        own = self._own.get(value)
        if own is not None:
            layer, slot = own
            if token is None:
                if layer not in (0, LAST):
                    raise _NotAlikeError
                return value
            if layer != token[0]:
                raise _NotAlikeError
            return self._own_input(layer + shift, slot)
        origin = self._origins.get(value)
        if origin is None:
            return value
        (layer, number), which = origin
        if token is not None and abs(layer - token[0]) <= 1:
            return self._value(layer + shift, number, which)
        if layer == 0:
            return self._value(0, number, which)
        if layer == LAST:
            return self._value(LAST + self._omitted, number, which)
        raise _NotAlikeError

    def _value(self, layer: int, number: int, which: int) -> Value:
        value = self._made.get((layer, number, which))
        if value is None:
            raise _NotAlikeError
        return value

    def _own_input(self, layer: int, slot: int) -> Value:
        new = self._new_inputs.get((layer, slot))
        if new is not None:
            return new
        kept = layer if layer < _BEHIND else layer - self._omitted
        return self._state.inputs[self._run.inputs[kept][slot]]

    def _outputs(self) -> None:
        """Add the gradients of the layers that were left out, and check the other outputs."""
        state, more = self._state, self._omitted
        of_layers = {
            self._gradients[i]: (layer, slot)
            for layer, own in enumerate(self._run.inputs)
            for slot, i in enumerate(own)
            if i in self._gradients
        }
        for at, v in enumerate(state.outputs):
            origin = self._origins.get(v)
            if at not in of_layers:
                if v in self._own or (origin is not None and origin[0][0] not in (0, LAST)):
                    raise _NotAlikeError
                continue
            layer, slot = of_layers[at]
            if layer != _BEHIND:
                continue
            other = state.outputs[self._gradients[self._run.inputs[_FRONT][slot]]]
            self._check_reads([other], [v])
            returned = state.returned[at]
            for new in range(_BEHIND, _BEHIND + more):
                if v in self._own:
                    raise _NotAlikeError
                if origin is None or v is other:
                    state.outputs.append(v)
                else:
                    (near, number), which = origin
                    if abs(near - layer) > 1:
                        raise _NotAlikeError
                    state.outputs.append(self._value(near + new - layer, number, which))
                state.returned.append(returned)


def _overwrites(op: Op) -> tuple[Value, ...]:
    overwrites = dict.fromkeys(op.overwrites)
    return tuple(dict.fromkeys((*(v for v in op.operands if v in overwrites), *overwrites)))
