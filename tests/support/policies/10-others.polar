# Impersonation by an allow rule, managers, fields, and quotas.
actor User {
  permissions = ["impersonate", "review"];
}

global {
  roles = ["support"];
}

resource Field {}

resource Plan {}

resource Repository {
  roles = ["reader", "owner"];
  permissions = ["read", "add_seat"];
  relations = { plan: Plan };

  "read" if "reader";
  "reader" if "owner";
}

allow(actor: Actor, action: String, resource: Resource) if has_permission(actor, action, resource);

allow(actor: User, action: String, resource: Resource) if
  is_impersonating(actor, user) and
  has_permission(actor, "impersonate", user) and
  user matches User and
  has_permission(user, action, resource);

has_permission(actor: User, "impersonate", _: User) if has_role(actor, "support");
has_permission(manager: User, "review", user: User) if managed_by(user, manager);
managed_by(user: User, manager: User) if direct_manager(user, manager);

managed_by(user: User, manager: User) if
  direct_manager(user, between) and
  between matches User and
  managed_by(between, manager);

allow_field(user: User, "read", repository: Repository, Field{"name"}) if
  has_permission(user, "read", repository);

allow_field(user: User, _: String, repository: Repository, _: Field) if
  has_role(user, "owner", repository);

has_permission(user: User, "add_seat", repository: Repository) if
  has_role(user, "owner", repository) and
  has_relation(repository, "plan", plan) and
  has_quota(plan, quota) and
  has_used(repository, used) and
  used < quota;

test "impersonation" {
  setup {
    has_role(User{"sue"}, "support");
    is_impersonating(User{"sue"}, User{"alice"});
    is_impersonating(User{"eve"}, User{"alice"});
    has_role(User{"alice"}, "reader", Repository{"anvil"});
  }
  assert allow(User{"sue"}, "read", Repository{"anvil"});
  assert_not allow(User{"eve"}, "read", Repository{"anvil"});
  assert allow(User{"sue"}, "impersonate", user: User) iff true;
}

test "managers review, through a cycle too" {
  setup {
    direct_manager(User{"a"}, User{"b"});
    direct_manager(User{"b"}, User{"c"});
    direct_manager(User{"c"}, User{"a"});
    direct_manager(User{"x"}, User{"c"});
  }
  assert allow(User{"c"}, "review", user: User) iff user in ["a", "b", "c", "x"];
  assert managed_by(User{"x"}, manager: User) iff manager in ["a", "b", "c"];
  assert_not allow(User{"x"}, "review", User{"a"});
}

test "fields" {
  setup {
    has_role(User{"alice"}, "reader", Repository{"anvil"});
    has_role(User{"bob"}, "owner", Repository{"anvil"});
  }
  assert allow_field(User{"alice"}, "read", Repository{"anvil"}, field: Field) iff
    field in ["name"];
  assert allow_field(User{"bob"}, "write", Repository{"anvil"}, Field{"secret"});
  assert_not allow_field(User{"alice"}, "read", Repository{"anvil"}, Field{"secret"});
}

test "quotas" {
  setup {
    has_role(User{"bob"}, "owner", Repository{"small"});
    has_role(User{"bob"}, "owner", Repository{"full"});
    has_relation(Repository{"small"}, "plan", Plan{"pro"});
    has_relation(Repository{"full"}, "plan", Plan{"pro"});
    has_quota(Plan{"pro"}, 10);
    has_used(Repository{"small"}, 9);
    has_used(Repository{"full"}, 10);
  }
  assert allow(User{"bob"}, "add_seat", repository: Repository) iff repository in ["small"];
}
