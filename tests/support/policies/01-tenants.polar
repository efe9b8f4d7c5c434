# Members of an organization read, admins add members, and an admin is a member.
actor User {}

resource Organization {
  roles = ["member", "admin"];
  permissions = ["read", "add_member"];

  "read" if "member";
  "add_member" if "admin";
  "member" if "admin";
}

test fixture acme {
  has_role(User{"alice"}, "member", Organization{"acme"});
  has_role(User{"bob"}, "admin", Organization{"acme"});
}

test "members read, admins add" {
  setup {
    fixture acme;
  }
  assert allow(User{"alice"}, "read", Organization{"acme"});
  assert_not allow(User{"alice"}, "add_member", Organization{"acme"});
  assert allow(User{"bob"}, action: String, Organization{"acme"}) iff
    action in ["read", "add_member"];
  assert allow(user: User, "read", Organization{"acme"}) iff user in ["alice", "bob"];
  assert has_role(User{"bob"}, role: String, Organization{"acme"}) iff role in ["member", "admin"];
}

test "another tenant sees nothing" {
  setup {
    fixture acme;
    has_role(User{"eve"}, "admin", Organization{"evil"});
  }
  assert allow(User{"eve"}, "read", org: Organization) iff org = Organization{"evil"};
  assert_not allow(User{"eve"}, _, Organization{"acme"});
}
