# Files in folders in folders; cycles in the data end.
actor User {}

resource Folder {
  roles = ["viewer", "owner"];
  permissions = ["read", "write"];
  relations = { parent: Folder };

  "read" if "viewer";
  "write" if "owner";
  "viewer" if "owner";
  role if role on "parent";
}

resource File {
  roles = ["viewer", "owner"];
  permissions = ["read", "write"];
  relations = { folder: Folder };

  "read" if "viewer";
  "write" if "owner";
  "viewer" if "owner";
  role if role on "folder";
}

test fixture tree {
  has_relation(Folder{"b"}, "parent", Folder{"a"});
  has_relation(Folder{"c"}, "parent", Folder{"b"});
  has_relation(File{"f"}, "folder", Folder{"c"});
  has_role(User{"alice"}, "owner", Folder{"a"});
  has_role(User{"bob"}, "viewer", Folder{"c"});
}

test "roles go down to any depth" {
  setup {
    fixture tree;
  }
  assert allow(User{"alice"}, "write", File{"f"});
  assert allow(User{"bob"}, action: String, File{"f"}) iff action in ["read"];
  assert allow(User{"alice"}, "read", folder: Folder) iff folder in ["a", "b", "c"];
  assert allow(user: User, "read", File{"f"}) iff user in ["alice", "bob"];
  assert_not allow(User{"bob"}, _, Folder{"b"});
}

test "a cycle ends" {
  setup {
    fixture tree;
    has_relation(Folder{"a"}, "parent", Folder{"c"});
  }
  assert allow(User{"bob"}, "read", folder: Folder) iff folder in ["a", "b", "c"];
  assert_not allow(User{"bob"}, "write", Folder{"a"});
}
