"""The names that users import: versions hold to them."""

import inspect

import penstock.replica as public

NAMES = {
    "Answer": "value position token is_repeat",
    "AsyncService": "",
    "Entry": "value position time_ms client number seed",
    "Machine": "",
    "RefusedError": "detail",
    "Service": "",
    "Settings": "wait_s open_s compare_s settle_s snapshot_entries snapshot_s look_s",
    "StateMachine": "",
    "Status": "position time_ms lag_s journal_is_away failure",
}
METHODS = {
    "open": "machine folder journal snapshots settings",
    "submit": "value client number",
    "read": "ask token",
    "token": "",
    "catch_up": "",
    "compare": "",
    "close": "",
    "status": "",
}


def parameters(of):
    return [name for name in inspect.signature(of).parameters if name not in ("self", "cls")]


def test_the_public_names_are_these():
    assert sorted(public.__all__) == sorted(NAMES)
    for name, wanted in NAMES.items():
        if wanted:
            assert parameters(getattr(public, name)) == wanted.split()


def test_both_kinds_of_service_have_the_same_methods():
    for name, wanted in METHODS.items():
        for kind in (public.Service, public.AsyncService):
            found = inspect.getattr_static(kind, name)
            if isinstance(found, property):
                continue
            given = parameters(found.__func__ if isinstance(found, classmethod) else found)
            assert given[: len(wanted.split())] == wanted.split(), (kind, name)
    for kind in (public.Service, public.AsyncService):
        assert METHODS.keys() == {name for name in vars(kind) if not name.startswith("_")}
