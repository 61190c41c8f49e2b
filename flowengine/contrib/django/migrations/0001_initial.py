"""The model of runs, without a table: `flowengine` creates and upgrades its tables itself."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies: list[tuple[str, str]] = []
    operations = [
        migrations.CreateModel(
            name="Run",
            fields=[
                ("id", models.CharField(max_length=32, primary_key=True, serialize=False)),
                ("tenant", models.CharField(max_length=64)),
                ("workflow", models.CharField(max_length=200)),
                ("state", models.CharField(max_length=16)),
                (
                    "idempotency_key",
                    models.CharField(max_length=200, null=True, verbose_name="key"),
                ),
                (
                    "parent_run_id",
                    models.CharField(max_length=32, null=True, verbose_name="parent run"),
                ),
                ("outputs", models.TextField(null=True)),
                ("error", models.TextField(null=True)),
                ("alarm", models.TextField(null=True)),
                ("labels", models.TextField(null=True)),
                ("created", models.BigIntegerField()),
                ("updated", models.BigIntegerField()),
                ("finished", models.BigIntegerField(null=True)),
            ],
            options={
                "db_table": "flowengine_run",
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
    ]
