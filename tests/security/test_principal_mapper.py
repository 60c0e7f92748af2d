"""ssl.principal.mapping.rules as Kafka's documentation and its own tests of them have it."""

from __future__ import annotations

import pytest

from korvet.errors import ConfigError
from korvet.security.principal_mapper import PrincipalMapper

DOCUMENTED = (
    r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "name", "user"),
    [
        (
            DOCUMENTED,
            "CN=serviceuser,OU=ServiceUsers,O=Unknown,L=Unknown,ST=Unknown,C=Unknown",
            "serviceuser",
        ),
        (DOCUMENTED, "CN=adminUser,OU=Admin,O=Unknown,L=Unknown,ST=Unknown,C=Unknown", "adminuser@admin"),
        (DOCUMENTED, "cn=kcopy,ou=eng,dc=corp,dc=com", "kcopy"),
        (DOCUMENTED, "OU=JCEKS,O=Unknown", "OU=JCEKS,O=Unknown"),
        ("DEFAULT", "CN=a,OU=b", "CN=a,OU=b"),
        ("", "CN=a", None),
        ("RULE:^CN=(.*),OU=b$/$1/", "CN=a,OU=c", None),
        ("RULE:^CN=(.*?)$/$1/U , DEFAULT", "CN=a", "A"),
        ("RULE:CN=(a)/$1@$2$3/", "CN=a", "a@$2$3"),  # of groups that are not there, the text
        ("RULE:CN=(a)(b)/$12$0/", "CN=ab", "a2CN=ab"),
        ("RULE:CN=([^,]+),.*/x\\/$1\\$/", "CN=a,OU=b", "x/a$"),
        ("RULE:CN=(?<who>.*)/${who}!/", "CN=a", "a!"),
        ("RULE:CN=(?<!x)(a)(b)?/$1$2/", "CN=a", "a"),
        ("RULE:.*/x/", "CN=a", "xx"),  # as Java's replaceAll has it: once for the name, once for its end
        ("RULE:CN=a\\/b/slash/", "CN=a/b", "slash"),
    ],
)
def test_the_first_rule_that_matches_gives_the_user(rules: str, name: str, user: str | None) -> None:
    assert PrincipalMapper(rules).user(name) == user


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "RULE:CN=(.*)",
        "RULE:a/b",
        "RULE:a/b/X",
        "RULE:a/b/LU",
        "DEFAULT RULE:a/b/",
        "RULE:(/b/",
        "RULE:a/${no}/",
    ],
)
def test_what_is_no_rule_is_refused(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules: Invalid rule: "):
        PrincipalMapper(rules)
