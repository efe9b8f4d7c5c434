"""Random policies, facts and questions: small, and of every form that the language has.

A rule that the checks refuse is left out, so that what is left is a policy.
"""

from random import Random

from penstock.authz.polar.check import check
from penstock.authz.polar.errors import PolicyError
from penstock.authz.polar.program import Fact, Program, Value
from penstock.authz.polar.query import Constraint, Question

TYPES = ("User", "Group", "Org", "Folder")
STRINGS = ("read", "member", "parent", 'it\'s "quoted"; DROP TABLE x --')
NUMBERS = ("-3", "2", "10", "1800000000")
DERIVED = {"p": 1, "q": 2, "r": 2, "s": 3, "has_role": 3, "has_permission": 3}
STORED = {"e": 2, "f": 2, "g": 1, "n": 2, "has_relation": 3, "has_role": 3, "zero": 0}
HEAD = """
actor User {}
actor Group extends Actor {}
resource Org { roles = ["member", "admin"]; permissions = ["read"]; }
resource Folder extends Org { relations = { parent: Folder, org: Org }; role if role on "parent"; }
declare e(User, Group); declare e(Group, Group); declare e(Folder, Folder); declare e(Org, Org);
declare f(Folder, User); declare g(User); declare g(Folder); declare n(Folder, Integer);
declare zero();
"""
RULES = (
    (
        'resource X { permissions = ["read"]; relations = { parent: Org };'
        ' "read" if "read" on "parent"; }'
    ),
    "p(_: User);",
    "q(x: User, _: Folder) if g(x);",
    'has_role(_: User, "member", o: Org) if e(o, _);',
    "r(x: Folder, y: Folder) if e(x, y);",
    "r(x: Folder, y: Folder) if e(x, z) and r(z, y);",
    "r(x: Folder, y: Folder) if r(x, z) and e(z, y);",
    "r(x: Folder, y: Folder) if r(x, z) and r(z, y);",
    "r(x: Org, y: Folder) if q(z, y) and e(x, x) and z matches User;",
    "q(x: Group, y: Folder) if r(y, z) and f(z, u) and e(u, x);",
    (
        "has_role(x: Actor, role: String, o: Org) if e(x, y) and y matches Group"
        " and has_role(y, role, o);"
    ),
    'has_role(x: User, role: String, o: Folder) if f(o, x) and role = "admin";',
    'has_permission(x: Actor, "read", o: Org) if has_role(x, "member", o);',
    (
        'has_permission(x: User, a: String, o: Folder) if has_role(x, "admin", o) and a in'
        ' ["read", "write"] and not f(o, x);'
    ),
    "p(x: Folder) if n(x, k) and k < @current_unix_time and k > 1;",
    "p(x: Folder) if n(x, k) and k != 10 and not g(x);",
    "p(x: Folder) if q(_, x) and zero();",
    's(x: User, y: Folder, z: Org) if q(x, y) and has_relation(y, "org", z);',
    "s(x: User, y: Folder, z: Org) if s(x, y, w) and e(w, z) and not g(x);",
    "q(x: User, y: Folder) if s(x, y, z) and p(y);",
    "p(x) if q(x, y) and r(y, y);",
    "even(x: Folder, y: Folder) if odd(x, z) and e(z, y);",
    "odd(x: Folder, y: Folder) if e(x, y);",
    "odd(x: Folder, y: Folder) if even(x, z) and e(z, y);",
    "odd(x: Folder, _: Folder) if g(x);",
)


def random_program(random: Random) -> Program:
    source = HEAD
    program = check(source)
    fixed = random.sample(RULES, random.randrange(3, 12))
    for rule in [*fixed, *(_rule(random) for _ in range(random.randrange(6)))]:
        try:
            program = check(f"{source}{rule}\n")
        except PolicyError:
            continue
        source += f"{rule}\n"
    return program


def _rule(random: Random) -> str:
    names = "xyzw"
    name, size = random.choice(list(DERIVED.items()))
    parameters = []
    for place in range(size):
        kind = "String" if name.startswith("has_") and place == 1 else random.choice(TYPES)
        choice = random.random()
        if kind == "String" and choice < 0.6:
            parameters.append(_text(random.choice(STRINGS)))
        elif choice < 0.1:
            parameters.append(f"_: {kind}")
        else:
            parameters.append(f"{names[place]}: {kind}")
    conditions = []
    for _ in range(random.randrange(4)):
        called, arity = random.choice([*DERIVED.items(), *STORED.items()])
        terms = []
        for place in range(arity):
            if called.startswith("has_") and place == 1 and random.random() < 0.7:
                terms.append(_text(random.choice(STRINGS)))
            else:
                terms.append(
                    random.choice([*names, "_"] if random.random() < 0.9 else ['User{"1"}'])
                )
        sign = "not " if random.random() < 0.15 else ""
        conditions.append(f"{sign}{called}({', '.join(terms)})")
    if random.random() < 0.2:
        conditions.append(
            f"{random.choice(names)} {random.choice(['=', '!='])} {random.choice(names)}"
        )
    word = random.choice([" and ", " and ", " or "])
    body = f" if {word.join(conditions)}" if conditions else ""
    return f"{name}({', '.join(parameters)}){body};"


def _text(text: str) -> str:
    escaped = text.replace('"', '\\"')
    return f'"{escaped}"'


def random_facts(random: Random, program: Program, count: int) -> list[Fact]:
    signatures = sorted(program.facts)
    facts = []
    for _ in range(count):
        signature = random.choice(signatures)
        values = tuple(Value(kind, random_id(random, kind)) for kind in signature.types)
        facts.append(Fact(signature.predicate, values))
    return facts


def random_id(random: Random, kind: str) -> str:
    if kind == "String":
        return random.choice(["member", "admin", *STRINGS])
    if kind == "Integer":
        return random.choice(NUMBERS)
    return random.choice(["1", "2", "3", "4", "' OR 1=1 --"])


def random_question(random: Random, program: Program) -> Question:
    """One or two calls; each variable is typed, and free, bound or one of a list."""
    heads = [s for s in sorted(program.clauses) if s.predicate in DERIVED or random.random() < 0.5]
    signatures = [random.choice(heads or sorted(program.facts))]
    if random.random() < 0.3:
        signatures.append(random.choice([*heads, *sorted(program.facts)]))
    calls = []
    constraints: dict[str, Constraint] = {}
    by_type: dict[str, list[str]] = {}
    for signature in signatures:
        names = []
        for kind in signature.types:
            known = by_type.setdefault(kind, [])
            if known and random.random() < 0.3:
                names.append(random.choice(known))
                continue
            name = f"v{len(constraints)}"
            known.append(name)
            names.append(name)
            ids = None
            if random.random() < 0.5:
                ids = tuple({random_id(random, kind) for _ in range(random.choice([1, 1, 1, 2]))})
            wide = {"User": "Actor", "Group": "Actor", "Folder": "Org"}.get(kind, kind)
            constraints[name] = Constraint(wide if random.random() < 0.1 else kind, ids)
        calls.append((signature.predicate, tuple(names)))
    return Question(tuple(calls), constraints)
