"""Objects of Kubernetes, and what a pod of theirs would be given."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple


class Manifest(NamedTuple):
    """The objects that are applied together."""

    objects: list[dict[str, Any]]

    def one(self, kind: str, name: str) -> dict[str, Any]:
        """Return the object of that kind and name."""
        (named,) = [item for item in self.objects if (item["kind"], item["metadata"]["name"]) == (kind, name)]
        return named

    def pod(self, name: str) -> dict[str, Any]:
        """Return the template of the pods of a StatefulSet."""
        template: dict[str, Any] = self.one("StatefulSet", name)["spec"]["template"]
        return template

    def environment(self, name: str, number: int, secrets: dict[str, str]) -> dict[str, str]:
        """Return the variables that Kubernetes gives to a pod of a StatefulSet in the namespace kafka.

        `secrets` has the values by their keys.
        """
        fields = {
            "metadata.name": f"{name}-{number}",
            "metadata.namespace": "kafka",
            "metadata.labels['apps.kubernetes.io/pod-index']": str(number),
        }
        pod = self.pod(name)["spec"]
        variables = dict(self._links()) if pod.get("enableServiceLinks", True) else {}
        for variable in pod["containers"][0]["env"]:
            match variable:
                case {"valueFrom": {"fieldRef": {"fieldPath": path}}}:
                    value = fields[path]
                case {"valueFrom": {"secretKeyRef": {"key": key}}}:
                    value = secrets[key]
                case _:
                    # Kubernetes replaces the names of variables that stand above.
                    value = re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], variable["value"])
            variables[variable["name"]] = value
        return variables

    def _links(self) -> Iterable[tuple[str, str]]:
        for item in self.objects:
            if item["kind"] == "Service" and item["spec"].get("clusterIP") != "None":
                name = item["metadata"]["name"].upper().replace("-", "_")
                yield f"{name}_SERVICE_HOST", "10.0.0.1"
                yield f"{name}_PORT", "tcp://10.0.0.1:9092"

    def write_config(self, name: str, directory: Path) -> Path:
        """Write the file of the ConfigMap; returns its path."""
        [(file, text)] = self.one("ConfigMap", name)["data"].items()
        path = Path(directory, file)
        path.write_text(text)
        return path
