"""A rule of a config as a row, and the only writer of what is wrong and what would be right."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, cast

from mimokit.config.errors import Problem
from mimokit.config.messages import NO_FIX, problem_at
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.roles import Role, role_of
from mimokit.config.rules.writing import NET, NO_MULTIPLE, nearest_multiple, told

if TYPE_CHECKING:
    from mimokit.config.architecture import ModuleArchitecture
    from mimokit.config.data import DataConfig
    from mimokit.config.parallelism import ModuleParallelismConfig
    from mimokit.config.runtime import RuntimeConfig
    from mimokit.config.strategy import StrategyConfig


class Subject:
    """A config as a rule reads it that looks at one module, or at one name in a section.

    A rule about the whole config looks at the language module. A rule is silent where a section,
    network or sizes that it reads are absent, so that none of them is None to it.

    Attributes:
        net: the network of the module.
        sizes: those of the module, data_parallel filled in.
    """

    def __init__(self, context: ValidationContext, name: str) -> None:
        self.context, self.name, self.model = context, name, context.model
        self.language = context.model.llm_module_name
        self.data = cast("DataConfig", context.data)
        self.runtime = cast("RuntimeConfig", context.runtime)
        self.strategy = cast("StrategyConfig", context.strategy)
        self.net = cast("ModuleArchitecture", context.model.module_architectures.get(name))
        self.sizes = cast("ModuleParallelismConfig", context.sizes.get(name))

    @cached_property
    def role(self) -> Role:
        """What the module is in its model."""
        return role_of(self.model, self.name, self.net)

    @cached_property
    def encodes(self) -> bool:
        """Whether its output reaches the language module."""
        return self.name in self.model.encoder_module_names

    @cached_property
    def makes_items(self) -> bool:
        """Whether it makes images or sound of what the language module gives it."""
        return self.name in self.model.reconstructing_names

    @property
    def feeds(self) -> tuple[str, ...]:
        """The modules that it feeds."""
        return self.model.module_topology.get(self.name, ())


@dataclass(frozen=True)
class ConfigRule:
    """One rule, readable in one place.

    Attributes:
        path: of the value that a problem names and a fix changes; {name} stands for the module.
        finds: what a subject breaks the rule with: a value, or a tuple of those that the sentence
            names. A false value means that the rule holds.
        says: what is wrong, and what would be right. It goes on after "FIELD is VALUE" where it
            begins with a comma. {0} is the first value that was found, {0:rank} that many ranks,
            {name} and {language} are names of modules.
        right: the value to write, or a function of what was found; None to leave it out. By default
            no single change rights it.
        mends: path of the value to write, where it is another one.
        reads: further paths. The rule is silent where a section is absent, or a value was rejected.
    """

    path: str
    finds: Callable[[Subject], object]
    says: str
    right: object = NO_FIX
    mends: str = ""
    reads: tuple[str, ...] = ()

    @cached_property
    def sections(self) -> frozenset[str]:
        """The sections that it reads."""
        return frozenset(path.partition(".")[0] for path in (self.path, *self.reads))

    def is_readable(self, subject: Subject) -> bool:
        """Tell whether no value at its paths was rejected before."""
        names = {"name": subject.name, "language": subject.language}
        paths = (path.format(**names) for path in (self.path, *self.reads))
        return subject.context.is_valid(*paths)

    def problem(self, subject: Subject, broken_by: object) -> Problem:
        """Return the problem of a subject that breaks it, with what it breaks it."""
        names = {"name": subject.name, "language": subject.language}
        values = broken_by if isinstance(broken_by, tuple) else (broken_by,)
        right = self.right(*values) if callable(self.right) else self.right
        path, mends = self.path.format(**names), self.mends.format(*values, **names)
        value, says = subject.context.value_at(path), told(self.says, *values, **names)
        return problem_at(path, value, says, right, mends)


def problems_in(
    context: ValidationContext, names: Iterable[str], rules: Sequence[ConfigRule]
) -> Iterator[Problem]:
    """Yield what breaks rules, which look at each of some modules."""
    # A plan asks about 200 rules: what is the same for all of them is asked once.
    absent, rejected = context.absent_sections, bool(context.invalid_paths)
    asked = [rule for rule in rules if absent.isdisjoint(rule.sections)]
    for name in names:
        subject = context.subjects.get(name) or Subject(context, name)
        context.subjects[name] = subject
        for rule in asked:
            if rejected and not rule.is_readable(subject):
                continue
            if broken_by := rule.finds(subject):
                yield rule.problem(subject, broken_by)


def led_by(leader: str, *fields: str) -> tuple[ConfigRule, ...]:
    """Return the rules of fields of a network that say nothing without another one."""

    def finds(field: str) -> Callable[[Subject], object]:
        return lambda m: not getattr(m.net, leader) and m.net.states(field)

    says = f", but {leader} is not given; give both or none."
    return tuple(ConfigRule(f"{NET}.{field}", finds(field), says, None) for field in fields)


def needs(field: str, *others: str) -> tuple[ConfigRule, ...]:
    """Return the rules of fields of a network that another one needs."""

    def finds(other: str) -> Callable[[Subject], object]:
        return lambda m: getattr(m.net, field) and getattr(m.net, other) is None

    says = f", and {field} needs it; give it."
    return tuple(ConfigRule(f"{NET}.{other}", finds(other), says) for other in others)


def multiple(field: str, of: str, where: Callable[[Subject], object]) -> ConfigRule:
    """Return the rule of a field of a network that another one has to divide."""

    def finds(m: Subject) -> object:
        value, divisor = getattr(m.net, field), getattr(m.net, of)
        return where(m) and value % divisor and (divisor, nearest_multiple(value, divisor))

    return ConfigRule(
        f"{NET}.{field}", finds, NO_MULTIPLE.replace("{name}", of), lambda _, right: right
    )
