# A role of a group is its users' role; groups are in groups.
actor User {}

actor Group {}

resource Repository {
  roles = ["reader", "admin"];
  permissions = ["read", "delete"];

  "read" if "reader";
  "delete" if "admin";
  "reader" if "admin";
}

has_role(member: Actor, role: String, repository: Repository) if
  has_group(member, group) and
  group matches Group and
  has_role(group, role, repository);

test "roles of groups" {
  setup {
    has_group(User{"alice"}, Group{"devs"});
    has_group(Group{"devs"}, Group{"staff"});
    has_group(Group{"staff"}, Group{"devs"});
    has_role(Group{"staff"}, "reader", Repository{"anvil"});
    has_role(Group{"devs"}, "admin", Repository{"tnt"});
    has_role(User{"bob"}, "reader", Repository{"tnt"});
  }
  assert allow(User{"alice"}, "read", Repository{"anvil"});
  assert allow(User{"alice"}, "delete", repository: Repository) iff repository in ["tnt"];
  assert allow(User{"alice"}, "read", repository: Repository) iff repository in ["anvil", "tnt"];
  assert allow(user: User, "read", Repository{"tnt"}) iff user in ["alice", "bob"];
  assert_not allow(User{"bob"}, "read", Repository{"anvil"});
}
