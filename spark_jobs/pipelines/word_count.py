"""Words counted as they come: the example of Spark's guide to Structured Streaming.

``nc -lk 9999`` sends what is typed, to WORDS_HOST=localhost and WORDS_PORT=9999. A socket keeps nothing: each
driver connects anew, and lines that came and were not committed are lost. What was counted stays.
"""

from pyspark.sql.functions import count, explode, split

from streamkeeper import pipelines as dp

dp.only_where_set("WORDS_HOST")
dp.only_where_set("WORDS_PORT")

dp.create_source("lines", format="socket", options={"host": "{env:WORDS_HOST}", "port": "{env:WORDS_PORT}"})

dp.create_streaming_table("word_count", comment="How often each word came", keys=["word"])


@dp.update_flow(name="counted_words", target="word_count", sources=["lines"], trigger="1 second")
def counted_words(lines):
    words = lines.select(explode(split("value", " ")).alias("word")).where("word <> ''")
    return words.groupBy("word").agg(count("*").alias("count"))
