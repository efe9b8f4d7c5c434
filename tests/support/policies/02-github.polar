# Roles flow down from the organization to its repositories and their issues.
actor User {}

resource Organization {
  roles = ["admin", "member"];
  permissions = ["read", "create_repositories"];

  "read" if "member";
  "create_repositories" if "admin";
  "member" if "admin";
}

resource Repository {
  roles = ["reader", "maintainer", "admin"];
  permissions = ["read", "push", "delete"];
  relations = { organization: Organization };

  "read" if "reader";
  "push" if "maintainer";
  "delete" if "admin";
  "reader" if "maintainer";
  "maintainer" if "admin";
  "reader" if "member" on "organization";
  "admin" if "admin" on "organization";
}

resource Issue {
  permissions = ["read", "comment", "close"];
  relations = { repository: Repository, creator: User };

  "read" if "read" on "repository";
  "comment" if "reader" on "repository";
  "close" if "maintainer" on "repository" or "creator";
}

test fixture world {
  has_relation(Repository{"anvil"}, "organization", Organization{"acme"});
  has_relation(Issue{"1"}, "repository", Repository{"anvil"});
  has_relation(Issue{"1"}, "creator", User{"carol"});
  has_role(User{"alice"}, "admin", Organization{"acme"});
  has_role(User{"bob"}, "member", Organization{"acme"});
}

test "roles flow down" {
  setup {
    fixture world;
  }
  assert allow(User{"alice"}, action: String, Repository{"anvil"}) iff
    action in ["read", "push", "delete"];
  assert allow(User{"bob"}, action: String, Issue{"1"}) iff action in ["read", "comment"];
  assert allow(user: User, "close", Issue{"1"}) iff user in ["alice", "carol"];
  assert allow(User{"bob"}, "read", issue: Issue) iff issue in ["1"];
  assert_not allow(User{"carol"}, "read", Issue{"1"});
}
