"""helm renders the chart of deploy/helm; `python -m tests.deploy_tools.chart` writes deploy/kubernetes/korvet.yaml."""

from __future__ import annotations

from tests.deploy.files import DEPLOY
from tests.deploy_tools.tools import run

HELM = "helm.sh/helm/v3/cmd/helm@v3.22.0"
MANIFESTS = DEPLOY / "kubernetes/korvet.yaml"
HEADER = """\
# Three brokers and a Valkey for trials, rendered from the chart: change deploy/helm/korvet, then run
# python -m tests.deploy_tools.chart. deploy/README.md says how to apply this file.
"""


def helm(*arguments: str) -> str:
    """Return what helm prints. Go builds it, and keeps it in its cache."""
    printed = run("go", "run", HELM, *arguments, package="golang").splitlines(keepends=True)
    # On stderr it notes that it follows the links to the rules.
    return "".join(line for line in printed if not line.startswith("walk.go:"))


def render(*flags: str, release: str = "korvet") -> str:
    """Return the objects of a release as YAML."""
    chart = str(DEPLOY / "helm/korvet")
    printed = helm("template", release, chart, "--namespace", "kafka", "--kube-version", "1.28", *flags)
    return printed[printed.index("---\n") :]


def manifests() -> str:
    """Return the text of deploy/kubernetes/korvet.yaml."""
    return HEADER + render("--set", "redis.trial.enabled=true")


if __name__ == "__main__":
    MANIFESTS.write_text(manifests(), encoding="utf-8")
