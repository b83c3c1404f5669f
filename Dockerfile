# docker build -t scenemem . && docker run --rm -p 8765:8765 scenemem serve weights:ssm-houses --host 0.0.0.0 --no-open
FROM python:3.12-slim
WORKDIR /scenemem
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir --constraint constraints.txt \
        --extra-index-url https://download.pytorch.org/whl/cpu '.[serve,speak,features]' \
    && scenemem --version
ENV SCENEMEM_CACHE=/cache
VOLUME ["/cache", "/data"]
EXPOSE 8765
ENTRYPOINT ["scenemem"]
CMD ["--help"]
