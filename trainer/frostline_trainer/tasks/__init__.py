"""Tasks: the loss that is trained on and the metrics that are reported."""

from frostline_contract.job import Job
from frostline_trainer.data.sizes import DataSizes
from frostline_trainer.data.sources.glue import glue_task
from frostline_trainer.tasks.base import Task
from frostline_trainer.tasks.classification import Classification
from frostline_trainer.tasks.language_modeling import LanguageModeling
from frostline_trainer.tasks.question_answering import QuestionAnswering
from frostline_trainer.tasks.regression import Regression

__all__ = ["Task", "task_for"]


def task_for(job: Job, sizes: DataSizes) -> Task:
    """The job's task on data of these sizes. Raises ValueError for a metric that the task does not compute."""
    metric = job.task.metric
    if job.task.kind == "question_answering":
        return QuestionAnswering(metric)
    if job.task.kind == "language_modeling":
        return LanguageModeling(metric)
    if sizes.regression:
        return Regression(metric)
    own = glue_task(job).metric if job.data.source == "glue" else "accuracy"
    return Classification(sizes.num_labels, metric, own)
