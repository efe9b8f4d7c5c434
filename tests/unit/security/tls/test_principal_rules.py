"""ssl_principal_mapping_rules: Kafka's examples, and what isn't a rule."""

import pytest

from penstock.model.errors import InvalidRequestError
from penstock.security.tls.principal_rules import map_name, parse_rules

NAME = "CN=Alice,OU=Dev,O=Example"


@pytest.mark.parametrize(
    ("rules", "user"),
    [
        ("", NAME),
        ("DEFAULT", NAME),
        ("RULE:^CN=([^,]*),.*$/$1/", "Alice"),
        ("RULE:^CN=([^,]*),.*$/$1/L", "alice"),
        ("RULE:^CN=([^,]*),.*$/$1/U", "ALICE"),
        ("RULE:^CN=([^,]*),OU=([^,]*),.*$/$1@$2/,DEFAULT", "Alice@Dev"),
        ("RULE:^CN=bob$/bob/, DEFAULT", NAME),
        ("RULE:^CN=bob$/bob/", None),
        # The whole name must match: a prefix is not enough.
        ("RULE:CN=Alice/alice/", None),
        ("RULE:CN=([^,]*)/$1/,RULE:.*OU=(Dev).*/$1/L", "dev"),
    ],
)
def test_the_first_rule_that_matches_names_the_user(rules: str, user: str | None) -> None:
    assert map_name(parse_rules(rules), NAME) == user


@pytest.mark.parametrize(
    "rules",
    ["alice", "RULE:a", "RULE:a/b", "RULE:(/b/", "RULE:a/$1/", "DEFAULT DEFAULT", "RULE:a/b/X"],
)
def test_what_is_not_a_rule_is_refused(rules: str) -> None:
    with pytest.raises(InvalidRequestError, match="ssl_principal_mapping_rules"):
        parse_rules(rules)
