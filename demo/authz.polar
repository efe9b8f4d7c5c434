# Organizations have members, and repositories of an organization are open to them.
actor User {}

resource Organization {
  roles = ["admin", "member"];
  permissions = ["read", "invite"];

  "read" if "member";
  "invite" if "admin";
  "member" if "admin";
}

resource Repository {
  roles = ["reader", "maintainer"];
  permissions = ["read", "push"];
  relations = { organization: Organization };

  "read" if "reader";
  "push" if "maintainer";
  "reader" if "maintainer";
  "reader" if "member" on "organization";
  "maintainer" if "admin" on "organization";
}

test "roles flow down" {
  setup {
    has_role(User{"bob"}, "admin", Organization{"acme"});
    has_relation(Repository{"anvil"}, "organization", Organization{"acme"});
  }
  assert allow(User{"bob"}, action: String, Repository{"anvil"}) iff action in ["read", "push"];
  assert_not allow(User{"alice"}, "read", Repository{"anvil"});
}
