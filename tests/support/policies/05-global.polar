# Support staff read everything; who may create organizations is a global permission.
actor User {}

global {
  roles = ["support", "admin"];
  permissions = ["create organization"];

  "create organization" if "admin";
  "support" if "admin";
}

resource Organization {
  roles = ["member"];
  permissions = ["read", "write"];

  "read" if "member" or global "support";
  "write" if "member";
}

test "global roles" {
  setup {
    has_role(User{"sue"}, "support");
    has_role(User{"root"}, "admin");
    has_role(User{"alice"}, "member", Organization{"acme"});
  }
  assert allow(User{"sue"}, "read", Organization{"anything"});
  assert_not allow(User{"sue"}, "write", Organization{"acme"});
  assert allow(User{"alice"}, "read", org: Organization) iff org in ["acme"];
  assert allow(User{"sue"}, "read", org: Organization) iff true;
  assert has_permission(user: User, "create organization") iff user in ["root"];
  assert_not has_permission(User{"sue"}, "create organization");
}
