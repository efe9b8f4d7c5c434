# May act unless banned; inherits unless overridden; an organization's default role.
actor User {}

resource Organization {
  roles = ["member"];
}

resource Folder {
  roles = ["viewer"];
  permissions = ["read", "act"];
  relations = { parent: Folder, organization: Organization };

  "read" if "viewer";
}

has_permission(user: User, "act", folder: Folder) if
  has_role(user, "viewer", folder) and
  not is_banned(user) and
  not is_locked(folder, _);

has_role(user: User, role: String, folder: Folder) if
  has_relation(folder, "parent", parent) and
  has_role(user, role, parent) and
  not is_overridden(folder);

has_role(user: User, role: String, folder: Folder) if
  has_relation(folder, "organization", organization) and
  has_default_role(organization, role) and
  has_role(user, "member", organization) and
  not is_private(folder);

declare is_locked(Folder, User);

test "unless" {
  setup {
    has_role(User{"alice"}, "viewer", Folder{"root"});
    has_role(User{"bob"}, "viewer", Folder{"root"});
    has_relation(Folder{"a"}, "parent", Folder{"root"});
    has_relation(Folder{"b"}, "parent", Folder{"root"});
    has_relation(Folder{"c"}, "parent", Folder{"b"});
    is_overridden(Folder{"b"});
    is_banned(User{"bob"});
    is_locked(Folder{"a"}, User{"x"});
  }
  assert allow(User{"alice"}, "read", folder: Folder) iff folder in ["root", "a"];
  assert allow(User{"alice"}, "act", folder: Folder) iff folder in ["root"];
  assert allow(User{"bob"}, action: String, Folder{"root"}) iff action in ["read"];
}

test "a default role" {
  setup {
    has_default_role(Organization{"acme"}, "viewer");
    has_role(User{"carol"}, "member", Organization{"acme"});
    has_relation(Folder{"open"}, "organization", Organization{"acme"});
    has_relation(Folder{"closed"}, "organization", Organization{"acme"});
    is_private(Folder{"closed"});
  }
  assert allow(User{"carol"}, "read", folder: Folder) iff folder in ["open"];
}
