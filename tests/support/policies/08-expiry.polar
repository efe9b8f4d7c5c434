# A role that ends at a time.
actor User {}

resource Repository {
  roles = ["member"];
  permissions = ["read"];

  "read" if "member";
}

has_role(user: User, role: String, repository: Repository) if
  has_role_with_expiry(user, role, repository, expiry) and
  expiry > @current_unix_time;

test "a role that has ended" {
  setup {
    has_role_with_expiry(User{"alice"}, "member", Repository{"anvil"}, 9911576880);
    has_role_with_expiry(User{"bob"}, "member", Repository{"anvil"}, 1000);
    has_role_with_expiry(User{"dan"}, "member", Repository{"anvil"}, -5);
  }
  assert allow(user: User, "read", Repository{"anvil"}) iff user in ["alice"];
  assert_not allow(User{"bob"}, "read", Repository{"anvil"});
}
