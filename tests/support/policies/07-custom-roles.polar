# Roles are objects that tenants make; facts say what each may do.
actor User {}

resource Organization {
  permissions = ["read", "write"];
}

resource Role {
  relations = { organization: Organization };
}

has_permission(user: User, action: String, organization: Organization) if
  role matches Role and
  has_role(user, role) and
  has_relation(role, "organization", organization) and
  grants_permission(role, action);

test "grants of a custom role" {
  setup {
    has_role(User{"alice"}, Role{"auditor"});
    has_relation(Role{"auditor"}, "organization", Organization{"acme"});
    grants_permission(Role{"auditor"}, "read");
    grants_permission(Role{"auditor"}, "export");
  }
  assert allow(User{"alice"}, action: String, Organization{"acme"}) iff
    action in ["read", "export"];
  assert_not allow(User{"alice"}, "read", Organization{"evil"});
}
