# Anyone reads what is public.
actor User {}

resource Repository {
  roles = ["member"];
  permissions = ["read", "push"];

  "read" if "member";
  "push" if "member";
}

has_permission(_: Actor, "read", repository: Repository) if is_public(repository);

test "public ones are read by anyone" {
  setup {
    is_public(Repository{"open"});
    has_role(User{"alice"}, "member", Repository{"closed"});
  }
  assert allow(User{"anyone"}, "read", Repository{"open"});
  assert allow(User{"anyone"}, "read", repository: Repository) iff repository in ["open"];
  assert allow(User{"alice"}, "read", repository: Repository) iff repository in ["open", "closed"];
  assert allow(user: User, "read", Repository{"open"}) iff true;
  assert allow(user: User, "read", Repository{"closed"}) iff user in ["alice"];
  assert_not allow(User{"anyone"}, "push", Repository{"open"});
}
