"""Who may do what: the one Role, rule by rule, and nothing beside it."""

from tests.chart.rendering import EVERYTHING, render

GRANTED = {
    ("apps", "statefulsets", "digits-trainer"): {"get", "list", "watch", "patch"},
    ("apps", "statefulsets/scale", "digits-trainer"): {"patch"},
    ("coordination.k8s.io", "leases", "digits-controller"): {"get", "update"},
    ("", "configmaps", "digits-job"): {"get", "list", "watch"},
    ("", "pods", ""): {"list", "watch", "patch", "delete"},
    ("", "events", ""): {"create"},
}
"""(group, resource, name) -> verbs. Pods and Events have no names beforehand."""


def test_the_role_is_exactly_this() -> None:
    (role,) = render().of("Role")
    granted = {}
    for rule in role["rules"]:
        (group,), (resource,), (name,) = rule["apiGroups"], rule["resources"], rule.get("resourceNames", [""])
        assert (group, resource, name) not in granted
        granted[group, resource, name] = set(rule["verbs"])
    assert granted == GRANTED


def test_every_named_object_is_one_that_the_chart_renders() -> None:
    names = {(one["kind"].lower() + "s", one["metadata"]["name"]) for one in render().objects}
    for _, resource, name in GRANTED:
        assert not name or (resource.partition("/")[0], name) in names


def test_only_the_controllers_account_has_rights() -> None:
    for found in (render(), render(*EVERYTHING)):
        (binding,) = found.of("RoleBinding")
        assert binding["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "digits-controller"}
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "digits-controller", "namespace": "research"}]


def test_accounts_mount_no_token_by_themselves() -> None:
    accounts = render(*EVERYTHING).of("ServiceAccount")
    assert len(accounts) == 5
    assert all(account["automountServiceAccountToken"] is False for account in accounts)


def test_two_runs_share_no_object() -> None:
    one, other = (
        {(o["kind"], o["metadata"]["name"]) for o in render(*EVERYTHING, release=name).objects} for name in ("a", "a-b")
    )
    assert one.isdisjoint(other)
    for found in render(*EVERYTHING, release="a").objects:
        assert found["metadata"]["labels"]["app.kubernetes.io/instance"] == "a"
